"""An HTTP/1.1 proxy on loopback, in front of an S3 server, that answers wrongly when asked to: by
plan, at random, or both.

    with running_s3(buckets=("b",)) as s3, S3FaultProxy(s3.port) as proxy:
        store = open_store("s3://b/spool", options=s3.options() | {"endpoint": proxy.endpoint})
        fired = proxy.plan(error(403, "AccessDenied"), operations={"put"}, count=1)  # `fired` is an Event
        proxy.plan(reset_after(), matches=lambda request: "/manifest/" in request.key)  # stored, and the answer is lost
        proxy.at_random(0.05, [error(503, "SlowDown"), reset_before(), truncated(), delayed(0.2)], seed=7)
        proxy.hold(); proxy.release()  # every request waits, none is refused
        proxy.calm()  # no plan, no random fault, nothing held

A fault acts before the request reaches the server (`error`, `reset_before`, `delayed`), or after
the server has answered it (`error_after`, `reset_after`, `truncated`, `stale_list`). The first plan
that matches acts; random faults come where no plan matches. `requests` lists what arrived with what
was done to it, `counts` how often each fault acted. The proxy decides alone in one lock, so that a
seed and one client at a time repeat a run. It checks no signature and changes nothing else. It
answers plain HTTP only.
"""

import collections
import contextlib
import http.client
import random
import re
import socket
import struct
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.http_stub import StubHandler

_Plain = Literal["get", "head", "list", "put", "create", "copy", "delete", "other"]
_Upload = Literal["start upload", "part", "complete upload", "abort upload"]
Operation = _Plain | _Upload
Kind = Literal["error", "error after", "reset before", "reset after", "truncated", "delayed", "stale list"]

MESSAGE = "by plan"
"""What an answer of the proxy says beside its code."""

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "trailer", "upgrade", "proxy-connection", "expect"}
)
_UPSTREAM_SECONDS = 60.0
_CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_KEY = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `key` is the path without the bucket, decoded; `create` is a PUT with If-None-Match: *."""

    number: int
    operation: Operation
    bucket: str
    key: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to a request. Made by the functions below."""

    kind: Kind
    status: int = 0
    code: str = ""
    seconds: float = 0.0
    keys: int = 0

    def __str__(self) -> str:
        return " ".join(
            str(part) for part in (self.kind, self.status or "", self.code, self.seconds or "", self.keys or "") if part
        )


def error(status: int, code: str) -> Fault:
    """Answers with an S3 error document; the server never sees the request."""
    return Fault("error", status=status, code=code)


def error_after(status: int, code: str) -> Fault:
    """The server carries the request out; the client reads that it failed."""
    return Fault("error after", status=status, code=code)


def reset_before() -> Fault:
    """Resets the connection; the server never sees the request."""
    return Fault("reset before")


def reset_after() -> Fault:
    """The server carries the request out; the connection is reset instead of an answer."""
    return Fault("reset after")


def truncated() -> Fault:
    """The headers and half of the body, then the connection ends. An answer without a body is lost whole."""
    return Fault("truncated")


def delayed(seconds: float) -> Fault:
    """Forwards the request after a pause, which `calm` and `close` cut short."""
    return Fault("delayed", seconds=seconds)


def stale_list(keys: int = 1) -> Fault:
    """A listing that lacks the `keys` objects that were stored last through this proxy. Other requests pass."""
    return Fault("stale list", keys=keys)


@dataclass(slots=True)
class _Plan:
    fault: Fault
    operations: frozenset[str]
    matches: Callable[[Request], bool]
    count: int | None
    fired: threading.Event = field(default_factory=threading.Event)


class S3FaultProxy:
    """Listens on 127.0.0.1 and forwards to `target_port` there, from construction to `close`."""

    def __init__(self, target_port: int) -> None:
        self.requests: list[tuple[Request, Fault | None]] = []
        self.counts: collections.Counter[Kind] = collections.Counter()
        self._target_port = target_port
        self._plans: list[_Plan] = []
        self._rate = 0.0
        self._random_faults: Sequence[Fault] = ()
        self._random = random.Random(0)
        self._stored: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()
        self._calm = threading.Event()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def plan(
        self,
        fault: Fault,
        *,
        operations: Collection[Operation] = (),
        matches: Callable[[Request], bool] = lambda _: True,
        count: int | None = 1,
    ) -> threading.Event:
        """`fault` for the next `count` requests (None: until `calm`) that match. The event: it has acted."""
        made = _Plan(fault, frozenset(operations), matches, count)
        with self._lock:
            self._plans.append(made)
        return made.fired

    def at_random(self, rate: float, faults: Sequence[Fault], *, seed: int) -> None:
        """One of `faults` for each request with probability `rate`, where no plan matches. Replaces the last ones."""
        with self._lock:
            self._rate, self._random_faults = rate, tuple(faults)
            self._random = random.Random(seed)

    def hold(self) -> None:
        """Connections are accepted and requests read; none is forwarded or answered until `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def calm(self) -> None:
        """From now on everything passes; what waits goes on at once."""
        with self._lock:
            self._plans, self._rate = [], 0.0
            calm, self._calm = self._calm, threading.Event()
        calm.set()
        self._open.set()

    def close(self) -> None:
        self.calm()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    # called by the handler's threads

    def decide(self, operation: Operation, bucket: str, key: str, nbytes: int) -> Fault | None:
        """What to do to a request that has been read whole; records it. Waits while requests are held."""
        self._open.wait()
        with self._lock:
            request = Request(len(self.requests) + 1, operation, bucket, key, nbytes)
            fault = self._planned(request) or self._drawn()
            self.requests.append((request, fault))
            if fault is not None:
                self.counts[fault.kind] += 1
            calm = self._calm
        if fault is not None and fault.kind == "delayed":
            calm.wait(fault.seconds)
        return fault

    def _planned(self, request: Request) -> Fault | None:
        for plan in self._plans:
            if (plan.operations and request.operation not in plan.operations) or not plan.matches(request):
                continue
            if plan.count is not None:
                plan.count -= 1
                if not plan.count:
                    self._plans.remove(plan)
            plan.fired.set()
            return plan.fault
        return None

    def _drawn(self) -> Fault | None:
        if not self._rate:
            return None
        hit, fault = self._random.random() < self._rate, self._random.choice(self._random_faults)
        return fault if hit else None

    def stored(self, bucket: str, key: str) -> None:
        """An object was stored: the next stale listing may leave it out."""
        with self._lock:
            self._stored.append((bucket, key))

    def without_newest(self, bucket: str, body: bytes, keys: int) -> bytes:
        with self._lock:
            missing = {key.encode() for seen, key in self._stored[-keys:] if seen == bucket}
        return _CONTENTS.sub(
            lambda part: (
                b"" if (name := _KEY.search(part[0])) and unquote(name[1].decode()).encode() in missing else part[0]
            ),
            body,
        )

    def forward(self, handler: "_Handler", body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._target_port, timeout=_UPSTREAM_SECONDS)
        with contextlib.closing(connection):
            connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
            for name, value in handler.headers.items():
                if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer, answer.read()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: S3FaultProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(StubHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_any(self) -> None:
        body = self._body()
        operation, bucket, key = _read(
            self.command,
            self.path,
            conditional=self.headers.get("If-None-Match") == "*",
            copies="x-amz-copy-source" in self.headers,
        )
        proxy = self.server.proxy
        fault = proxy.decide(operation, bucket, key, len(body))
        kind = fault.kind if fault is not None else None
        if fault is not None and kind == "error":
            return self._refuse(fault)
        if kind == "reset before":
            return self._reset()
        try:
            answer, content = proxy.forward(self, body)
        except OSError:
            return self._reset()
        if answer.status == 200 and operation in ("put", "create", "copy", "complete upload"):
            proxy.stored(bucket, key)
        if fault is not None and kind == "error after":
            return self._refuse(fault)
        if kind == "reset after":
            return self._reset()
        if fault is not None and kind == "stale list" and operation == "list":
            content = proxy.without_newest(bucket, content, fault.keys)
        return self._pass_on(answer, content, whole=kind != "truncated")

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            super().handle()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.content()
        parts: list[bytes] = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _refuse(self, fault: Fault) -> None:
        document = (
            f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{fault.code}</Code><Message>{MESSAGE}'
            "</Message><RequestId>1</RequestId></Error>"
        ).encode()
        self.answer(fault.status, document, {"Content-Type": "application/xml"}, body=self.command != "HEAD")

    def _pass_on(self, answer: http.client.HTTPResponse, content: bytes, *, whole: bool) -> None:
        if not whole and (not content or self.command == "HEAD"):
            return self._reset()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content if whole else content[: len(content) // 2])
        if not whole:
            self.wfile.flush()
            self.close_connection = True
        return None

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.connection.close()


def _read(method: str, target: str, *, conditional: bool, copies: bool) -> tuple[Operation, str, str]:
    """Operation, bucket and key of a path-style request."""
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
    return _operation(method, frozenset(query), conditional=conditional, copies=copies), bucket, key


def _operation(method: str, query: frozenset[str], *, conditional: bool, copies: bool) -> Operation:
    upload: dict[str, Operation] = {"PUT": "part", "POST": "complete upload", "DELETE": "abort upload"}
    if "uploadId" in query:
        return upload.get(method, "other")
    if method == "POST":
        return "start upload" if "uploads" in query else "delete" if "delete" in query else "other"
    if method == "PUT":
        return "copy" if copies else "create" if conditional else "put"
    if method == "GET":
        return "list" if query & {"list-type", "prefix", "delimiter", "marker"} else "get"
    return "head" if method == "HEAD" else "delete" if method == "DELETE" else "other"
