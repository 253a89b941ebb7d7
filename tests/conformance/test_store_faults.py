"""A real S3 server behind a proxy that misbehaves: what each answer means, and that the next try
finds a store that works.
"""

import itertools
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sluice.cli.table_names import request
from sluice.contract import keys
from sluice.contract.control import PAUSE, Request
from sluice.errors import ObjectExists, ObjectMissing, StoreError, StoreRefused, StoreUnavailable
from sluice.manifest.reader import load_state
from sluice.store import remote
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from sluice.store.refused_operations import PATIENCE_SECONDS, RefusedOperations
from sluice.store.remote import RemoteStore
from tests.support.authority import Authority
from tests.support.extent import cases
from tests.support.manifests import open_log
from tests.support.s3proxy_faults import (
    MESSAGE,
    Fault,
    Operation,
    S3FaultProxy,
    error,
    error_after,
    reset_after,
    reset_before,
    stale_list,
    truncated,
)
from tests.support.sources import Bucket

LARGE = bytes(range(256)) * (80 << 10)
"""20 MiB: three parts."""


@pytest.fixture
def proxy(moto: Bucket) -> Iterator[S3FaultProxy]:
    with S3FaultProxy(moto.server.port) as running:
        yield running


@pytest.fixture
def store(proxy: S3FaultProxy, moto: Bucket, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """Through the proxy, without the library's own retries: each test sees the first answer."""
    monkeypatch.setitem(remote.RETRY, "max_retries", 0)
    monkeypatch.setitem(remote.CLIENT, "timeout", timedelta(seconds=30))
    return open_store(f"{moto.uri}/spool", options={**moto.options, "endpoint": proxy.endpoint})


OPERATIONS: dict[str, Callable[[ObjectStore], object]] = {
    "create": lambda store: store.create("k", b"1"),
    "put": lambda store: store.put("k", b"1"),
    "get": lambda store: store.get("k"),
    "list": lambda store: list(store.list("k/")),
}
EVERY = "create put get list"


@pytest.mark.parametrize(
    ("status", "code", "operations", "expected"),
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
    proxy: S3FaultProxy, store: ObjectStore, status: int, code: str, operations: str, expected: type[StoreError]
) -> None:
    proxy.plan(error(status, code), count=None)
    for operation in operations.split():
        with pytest.raises(expected) as raised:
            OPERATIONS[operation](store)
        assert raised.type is expected
        assert MESSAGE not in str(raised.value) + raised.value.hint
        assert operation in str(raised.value)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_answer_at_all_is_unavailable(moto: Bucket, store: ObjectStore, operation: str) -> None:
    nobody = open_store(f"{moto.uri}/spool", options={**moto.options, "endpoint": "http://127.0.0.1:1"})
    with pytest.raises(StoreUnavailable):
        OPERATIONS[operation](nobody)


def test_a_size_that_cannot_be_had_is_not_called_absent(proxy: S3FaultProxy, store: ObjectStore) -> None:
    proxy.plan(error(403, "AccessDenied"))
    with pytest.raises(StoreRefused):
        store.size("k")


def test_a_create_whose_answer_was_lost_is_found_to_be_ours(
    proxy: S3FaultProxy, store: ObjectStore, moto: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = proxy.plan(reset_after(), operations={"create"}, count=2)
    log = open_log(store)
    assert lost.is_set()
    assert load_state(store) == log.state
    monkeypatch.setitem(remote.RETRY, "max_retries", 2)
    retrying = open_store(f"{moto.uri}/spool", options={**moto.options, "endpoint": proxy.endpoint})
    proxy.plan(error_after(500, "InternalError"), operations={"create"})
    with pytest.raises(ObjectExists):
        retrying.create("k", b"1")


def test_a_request_whose_answer_was_lost_is_there_once_and_no_error(
    proxy: S3FaultProxy, moto: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(remote.RETRY, "max_retries", 2)
    store = open_store(f"{moto.uri}/spool", options={**moto.options, "endpoint": proxy.endpoint})
    lost = proxy.plan(error_after(500, "InternalError"), operations={"create"})
    request(store, PAUSE, ("public", "t"))
    assert lost.is_set()
    (key,) = store.list(keys.CONTROL)
    assert Request.decode(store.get(key)).action == PAUSE


PASSING = [error(503, "SlowDown"), error_after(500, "InternalError"), reset_before(), reset_after()]
NO_UPLOAD = error(404, "NoSuchUpload")
"""What other answers mean is in the table above."""


@pytest.mark.parametrize("fault", cases([*PASSING, NO_UPLOAD], quick=[PASSING[1], NO_UPLOAD]), ids=str)
@pytest.mark.parametrize("operation", ["start upload", "part", "complete upload"])
def test_an_upload_in_parts_that_is_disturbed_anywhere_is_tried_again_whole(
    proxy: S3FaultProxy, store: ObjectStore, operation: Operation, fault: Fault
) -> None:
    proxy.plan(fault, operations={operation}, count=None)
    with pytest.raises(StoreUnavailable):
        store.put("data/large", LARGE)
    proxy.calm()
    store.put("data/large", LARGE)
    assert store.get("data/large") == LARGE


@pytest.mark.parametrize("fault", [*PASSING, truncated()], ids=str)
def test_reads_writes_and_listings_pass_over_a_disturbance(
    proxy: S3FaultProxy, store: ObjectStore, fault: Fault
) -> None:
    store.put("data/there", b"1")
    actions: list[Callable[[], object]] = [
        lambda: store.get("data/there"),
        lambda: store.size("data/there"),
        lambda: list(store.list("data/")),
        lambda: store.put("data/there", b"2"),
        lambda: store.delete("data/there"),
    ]
    for action in actions:
        action()
        proxy.plan(fault, count=1)
        with pytest.raises(StoreUnavailable):
            action()
        action()


@pytest.mark.parametrize("fault", [*PASSING, truncated()], ids=str)
def test_a_create_in_doubt_is_settled_by_the_next_one(proxy: S3FaultProxy, store: ObjectStore, fault: Fault) -> None:
    proxy.plan(fault, operations={"create"})
    with pytest.raises(StoreUnavailable):
        store.create("manifest/1.json", b"ours")
    carried_out = fault.kind in ("error after", "reset after", "truncated")
    if carried_out:
        with pytest.raises(ObjectExists):
            store.create("manifest/1.json", b"ours")
    else:
        store.create("manifest/1.json", b"ours")
    assert store.get("manifest/1.json") == b"ours"


def test_a_route_that_is_missing_for_a_moment_is_not_an_object_that_is_missing(
    proxy: S3FaultProxy, store: ObjectStore
) -> None:
    store.create("manifest/1.json", b"1")
    assert store.get("manifest/1.json") == b"1"
    proxy.plan(error(404, "default backend"), operations={"get"})
    with pytest.raises(StoreUnavailable):
        store.get("manifest/1.json")


REFUSALS = {
    **dict.fromkeys(("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed"), 403),
    **dict.fromkeys(("ExpiredToken", "InvalidToken"), 400),
    "Unauthorized": 401,
    "NoSuchBucket": 404,
}


@pytest.mark.parametrize(("code", "status"), REFUSALS.items())
def test_what_worked_and_is_refused_is_tried_again_for_a_while_and_then_refused(
    proxy: S3FaultProxy, store: ObjectStore, status: int, code: str
) -> None:
    assert isinstance(store, RemoteStore)
    times = itertools.chain([0.0, PATIENCE_SECONDS - 1, PATIENCE_SECONDS + 1], itertools.repeat(1000.0))
    patient = RemoteStore(store.backend, uri="s3://x/", refusals=RefusedOperations(clock=lambda: next(times)))
    patient.put("data/1", b"1")
    proxy.plan(error(status, code), operations={"put"}, count=None)
    for expected in (StoreUnavailable, StoreUnavailable, StoreRefused):
        with pytest.raises(expected, match=str(status)) as caught:
            patient.put("data/2", b"2")
        assert caught.type is expected
    proxy.calm()
    patient.put("data/2", b"2")
    proxy.plan(error(status, code), operations={"put"})
    with pytest.raises(StoreUnavailable):
        patient.put("data/3", b"3")


@pytest.mark.parametrize("folder", ["data/", "stage/", "control/", ""])
def test_the_first_write_below_a_folder_outlives_a_rotation_of_the_credentials(
    proxy: S3FaultProxy, store: ObjectStore, folder: str
) -> None:
    store.create("manifest/1", b"1")
    proxy.plan(error(403, "AccessDenied"), operations={"create"})
    with pytest.raises(StoreUnavailable, match="403"):
        store.create(f"{folder}1", b"1")
    store.create(f"{folder}1", b"1")


def test_writes_elsewhere_do_not_prolong_the_refusal_of_a_folder(proxy: S3FaultProxy, store: ObjectStore) -> None:
    assert isinstance(store, RemoteStore)
    times = iter([0.0, PATIENCE_SECONDS + 1])
    patient = RemoteStore(store.backend, uri="s3://x/", refusals=RefusedOperations(clock=lambda: next(times)))
    for expected in (StoreUnavailable, StoreRefused):
        patient.create(f"manifest/{expected.__name__}", b"1")
        proxy.plan(error(403, "AccessDenied"), operations={"create"})
        with pytest.raises(expected) as caught:
            patient.create("stage/1", b"1")
        assert caught.type is expected


def test_a_stale_list_of_the_proxy_lacks_what_was_stored_last(proxy: S3FaultProxy, store: ObjectStore) -> None:
    """Seeded runs use it, and would find nothing wrong if it did nothing."""
    for key in ("data/1", "data/2"):
        store.put(key, b"1")
    proxy.plan(stale_list(), operations={"list"})
    assert [list(store.list("data/")) for _ in range(2)] == [["data/1"], ["data/1", "data/2"]]


class _Empty(BaseHTTPRequestHandler):
    """A store without an object."""

    def do_GET(self) -> None:
        content = b"<Error><Code>NoSuchKey</Code></Error>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _over_tls(authority: Authority) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.pair("store"))
    with ThreadingHTTPServer(("127.0.0.1", 0), _Empty) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"https://localhost:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_store_whose_certificate_is_not_accepted_is_no_store_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(remote.RETRY, "max_retries", 0)
    authority, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    key = {"aws_access_key_id": "x", "aws_secret_access_key": "y", "aws_region": "us-east-1"}
    with _over_tls(authority) as endpoint:
        monkeypatch.setenv("SSL_CERT_FILE", str(other.path))
        store = open_store("s3://bucket/spool", options={**key, "aws_endpoint": endpoint})
        with pytest.raises(StoreUnavailable, match="certificate of the store is not accepted") as caught:
            store.get("k")
        assert "SSL_CERT_FILE" in caught.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
        with pytest.raises(ObjectMissing):
            open_store("s3://bucket/spool", options={**key, "aws_endpoint": endpoint}).get("k")
