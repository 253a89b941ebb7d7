"""What a server's answer means: each status becomes the error whose disposition is right, and
nothing of the answer's text gets out.
"""

import http.server
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from obstore.store import S3Store

from sluice.errors import ObjectExists, ObjectMissing, StoreError, StoreRefused, StoreUnavailable
from sluice.manifest.reader import load_state
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.store.remote import RemoteStore
from tests.support.manifests import opened

CONFIDENTIAL = "string-to-sign-of-somebody"


class Answers(http.server.ThreadingHTTPServer):
    """A server that gives one answer to everything, or, without one, keeps objects and forgets to
    answer the first `lost` creates.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: tuple[int, str] | None = None
        self.objects: dict[str, bytes] = {}
        self.lost = 0
        self.tries = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Answers

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.tries += 1
        if self.server.answer is not None:
            status, code = self.server.answer
            self._send(status, f"<Error><Code>{code}</Code><Message>{CONFIDENTIAL}</Message></Error>".encode())
        elif self.command == "PUT" and self.path in self.server.objects:
            self._send(412, b"")
        elif self.command == "PUT":
            self.server.objects[self.path] = body
            self.server.lost -= 1
            if self.server.lost < 0:
                self._send(200, b"")
            else:
                self.connection.close()
        elif "list-type" in self.path:
            self._send(
                200, b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'
            )
        elif self.path in self.server.objects:
            self._send(200, self.server.objects[self.path])
        else:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Answers]:
    with Answers() as answers:
        thread = threading.Thread(target=answers.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield answers
        answers.shutdown()
        thread.join()


def _store(port: int, *, retries: int = 0) -> RemoteStore:
    backend = S3Store(
        "bucket",
        endpoint=f"http://127.0.0.1:{port}",
        region="us-east-1",
        access_key_id="test",
        secret_access_key="test",
        client_options={"allow_http": True, "timeout": timedelta(seconds=5)},
        retry_config={
            "max_retries": retries,
            "backoff": {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2},
        },
    )
    return RemoteStore(backend, uri="s3://bucket/")


OPERATIONS: dict[str, Callable[[RemoteStore], object]] = {
    "create": lambda store: store.create("k", b"1"),
    "put": lambda store: store.put("k", b"1"),
    "get": lambda store: store.get("k"),
    "list": lambda store: list(store.list("k/")),
}
EVERY = "create put get list"


@pytest.mark.parametrize(
    ("status", "code", "operations", "error"),
    [
        (412, "PreconditionFailed", "create", ObjectExists),
        (409, "BlobAlreadyExists", "create", ObjectExists),
        (409, "ConditionalRequestConflict", EVERY, StoreUnavailable),
        (404, "NoSuchKey", "get", ObjectMissing),
        (404, "NoSuchBucket", EVERY, StoreRefused),
        (404, "NoSuchKey", "create put list", StoreRefused),
        (404, "NoSuchUpload", "create put get", StoreUnavailable),
        (404, "NoRoute", EVERY, StoreRefused),
        (400, "InvalidArgument", EVERY, StoreRefused),
        (400, "ExpiredToken", EVERY, StoreRefused),
        (400, "RequestTimeout", EVERY, StoreUnavailable),
        (301, "PermanentRedirect", EVERY, StoreRefused),
        (401, "Unauthorized", EVERY, StoreRefused),
        (403, "AccessDenied", EVERY, StoreRefused),
        (405, "MethodNotAllowed", EVERY, StoreRefused),
        (408, "RequestTimeout", EVERY, StoreUnavailable),
        (412, "PreconditionFailed", "put", StoreRefused),
        (429, "SlowDown", EVERY, StoreUnavailable),
        (500, "InternalError", EVERY, StoreUnavailable),
        (501, "NotImplemented", EVERY, StoreRefused),
        (503, "SlowDown", EVERY, StoreUnavailable),
        (507, "InsufficientStorage", EVERY, StoreUnavailable),
    ],
)
def test_a_status_has_one_meaning_and_its_text_stays_inside(
    server: Answers, status: int, code: str, operations: str, error: type[StoreError]
) -> None:
    server.answer = (status, code)
    for operation in operations.split():
        with pytest.raises(error) as raised:
            OPERATIONS[operation](_store(server.server_port))
        assert raised.type is error
        assert CONFIDENTIAL not in str(raised.value) + raised.value.hint
        assert operation in str(raised.value)


@pytest.mark.parametrize("operation", EVERY.split())
def test_no_answer_at_all_is_unavailable(operation: str) -> None:
    with pytest.raises(StoreUnavailable):
        OPERATIONS[operation](_store(1))


def test_a_size_that_cannot_be_had_is_not_called_absent(server: Answers) -> None:
    server.answer = (403, "AccessDenied")
    with pytest.raises(StoreRefused):
        _store(server.server_port).size("k")


def test_a_create_whose_answer_was_lost_is_found_to_be_ours(server: Answers) -> None:
    server.lost = 1
    with pytest.raises(ObjectExists):
        _store(server.server_port, retries=2).create("k", b"1")
    server.objects.clear()
    server.lost, server.tries = 2, 0
    log = ManifestLog.open(_store(server.server_port), opened(), PipelineState())
    assert log.state.seq == 1
    assert server.tries >= 3
    assert load_state(_store(server.server_port)) == log.state
