"""Liveness, readiness, metrics and status over HTTP, on a thread of their own.

Invariants: liveness says whether *this process* still moves (age of each loop's heartbeat, steps
past their own deadline) and never asks PostgreSQL or the object store, so that their failure does
not become our restart. Readiness of ingest is the verdict and nothing else. The port has no verb
that changes anything. Nothing served holds row values or secrets.
"""

import errno
import hashlib
import http.client
import json
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET, AF_INET6, AF_UNIX
from socketserver import TCPServer
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import parse_qs

from sluice.errors import ServiceError, UsageError, WriterFenced
from sluice.health import status_page
from sluice.health.access import CHALLENGE, Access, is_loopback
from sluice.health.readable import Waiting
from sluice.health.tls import EndpointTls, TlsFiles
from sluice.health.verdict import Verdict
from sluice.telemetry.catalogue import HEARTBEAT
from sluice.telemetry.metrics import Metrics

LOOP_SECONDS = 60.0
"""A loop that has not gone round for this long is stuck: far above any wait between two looks at a
socket, far below a probe's patience.
"""
NO_TLS = TlsFiles()
_SOCKET_SECONDS = 10.0
"""For the whole of a request, and for the whole of its answer, however slowly the client goes on."""
MOST_CONNECTIONS = 512
"""At once: an ingest and an applier that cannot open files any more would stop, and 1024 is the usual limit of a
process. /wait takes half of them at most.
"""
_PROBES = ("/livez", "/readyz", "/startupz")
_WHO = "Sluice-Process"
"""The header that says which process answers, to the like of it alone."""
_ASKING_SECONDS = 5.0
_TEXT = "text/plain; charset=utf-8"
_REBOUND = (
    b"this endpoint listens on loopback and needs no token, so it answers under an IP address, localhost and the host "
    b"that it was given to listen on: ask by one of these, or set a token\n"
)
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


UNIX = "unix:"
"""Begins an address that is the path of a socket. The rights of its folder say who may connect: there is neither TLS
nor a token.
"""


class CannotListen(UsageError):
    """Another program has the port, or another process of this pipeline."""


class Rendered(Protocol):
    """What is served as /metrics."""

    def render(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """To a request, with further `headers`."""

    code: int
    content: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


PAGE = Answer(200, status_page.CONTENT, status_page.CONTENT_TYPE, status_page.HEADERS)
Beside = Callable[[str, str], Answer | None]
"""Answers a request for a path, with its query, that this server does not know; None: nor does this."""


class Health:
    """What the loops say about themselves. All methods may be called from any thread and cost next
    to nothing.
    """

    def __init__(
        self, metrics: Metrics, *, loop_seconds: float = LOOP_SECONDS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics = metrics
        self._loop_seconds = loop_seconds
        self._monotonic = monotonic
        self._beats: dict[str, float] = {}
        self._steps: dict[int, tuple[str, float]] = {}
        self._step_number = 0
        self._started = False
        self._not_ready = "starting"
        self._lock = threading.Lock()

    def beat(self, loop: str) -> None:
        """Loop `loop` went round. From its first beat on it is watched."""
        with self._lock:
            self._beats[loop] = self._monotonic()
        self._metrics.set(HEARTBEAT, time.time(), loop=loop)

    def retire(self, loop: str) -> None:
        """Loop `loop` has ended on purpose and is watched no more."""
        with self._lock:
            self._beats.pop(loop, None)

    @contextmanager
    def step(self, name: str, deadline_seconds: float) -> Iterator[None]:
        """Work that must end within `deadline_seconds`; while it is late the process counts as
        stuck.
        """
        with self._lock:
            self._step_number += 1
            number = self._step_number
            self._steps[number] = (name, self._monotonic() + deadline_seconds)
        try:
            yield
        finally:
            with self._lock:
                del self._steps[number]

    def started(self) -> None:
        """Configuration is read and the loops are about to run."""
        self._started = True

    def ready(self) -> None:
        """Changes are being streamed."""
        self._not_ready = ""

    def not_ready(self, reason: str) -> None:
        """`reason` is a word or two for people: connecting, draining."""
        self._not_ready = reason

    def live_problems(self) -> list[str]:
        now = self._monotonic()
        with self._lock:
            loops = [
                f"loop {name} has not gone round for {now - beat:.0f} s"
                for name, beat in self._beats.items()
                if now - beat > self._loop_seconds
            ]
            return loops + [
                f"step {name} is {now - end:.0f} s past its deadline" for name, end in self._steps.values() if now > end
            ]

    def ready_problems(self) -> list[str]:
        return [self._not_ready] if self._not_ready else []

    def start_problems(self) -> list[str]:
        return [] if self._started else ["starting"]


class HealthServer:
    """Serves /metrics, /livez, /readyz, /startupz and, given `status`, /status and the page from
    construction until `close`; given `history`, /history with the tables that are asked for as
    `?table=NAME`, once for each; given `wait`, /wait. Given `verdict`, /readyz answers with it, and not with what
    `health` was given. `address` is where it listens; port 0 takes a free one. `setting` is where
    `listen` comes from, for people. `tls` is how connections are secured, and `token_file` what requests
    must carry to read more than whether the probes pass. `page` is asked for the page, and `beside` for
    everything else. Processes of which only one may run have the same `process`, a name for people and then
    what it works on: the second of them raises WriterFenced, however early the first one is in its start.
    """

    def __init__(
        self,
        listen: str,
        *,
        metrics: Rendered,
        health: Health,
        status: Callable[[], dict[str, Any]] | None = None,
        verdict: Callable[[], Verdict] | None = None,
        history: Callable[[Sequence[str]], dict[str, Any]] | None = None,
        wait: Waiting | None = None,
        page: Callable[[], Answer] = lambda: PAGE,
        beside: Beside = lambda _path, _query: None,
        setting: str = "telemetry.listen",
        token_file: str = "",
        tls: TlsFiles = NO_TLS,
        process: tuple[str, ...] = (),
    ) -> None:
        who = hashlib.sha256("\0".join(process).encode()).hexdigest() if process else ""
        if listen.startswith(UNIX):
            token_file, tls = "", NO_TLS
        access = Access(token_file, certificates=bool(tls.client_ca))
        try:
            self._server = _Server(
                _address(listen),
                metrics=metrics,
                health=health,
                status=status,
                verdict=verdict,
                history=history,
                wait=wait,
                page=page,
                beside=beside,
                access=access,
                tls=EndpointTls(tls) if tls.cert else None,
                who=who,
            )
        except (OSError, ValueError, OverflowError) as error:
            if who and getattr(error, "errno", None) == errno.EADDRINUSE and _who_answers(listen, tls) == who:
                raise WriterFenced(
                    f"another {process[0]} runs this pipeline: it listens on {listen}", hint="stop that process first"
                ) from None
            reason = error.strerror or type(error).__name__ if isinstance(error, OSError) else type(error).__name__
            raise CannotListen(
                f"cannot listen on {listen}: {reason}",
                hint=f"if another program has the port, choose another {setting}, such as 127.0.0.1:0 for any free "
                "port; if this pipeline runs already, stop that process first",
            ) from None
        if listen.startswith(UNIX):
            self.address = listen
        else:
            host, port = str(self._server.server_address[0]), int(self._server.server_address[1])
            self.address = _shown(host, port)
            if is_loopback(host) and not tls.cert:
                access.own = listen.rpartition(":")[0].strip("[]"), port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _shown(host: object, port: object) -> str:
    return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"


def _who_answers(listen: str, tls: TlsFiles) -> str:
    """What the process that listens there says of itself; empty when it says nothing in time."""
    host, _, port = listen.rpartition(":")
    there = (host.strip("[]") or "localhost", int(port), _ASKING_SECONDS)
    asking: http.client.HTTPConnection
    if tls.cert:
        # Nothing is believed but a name that only the like of this process knows.
        anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
        asking = http.client.HTTPSConnection(*there[:2], timeout=there[2], context=anybody)
    else:
        asking = http.client.HTTPConnection(*there[:2], timeout=there[2])
    try:
        asking.request("GET", "/livez")
        return asking.getresponse().headers[_WHO] or ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        asking.close()


def _address(listen: str) -> tuple[str, int] | str:
    """Raises OSError, ValueError. A socket that a killed process left behind makes place."""
    if listen.startswith(UNIX):
        path = listen.removeprefix(UNIX)
        Path(path).unlink(missing_ok=True)
        return path
    host, _, port = listen.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        address: tuple[str, int] | str,
        *,
        metrics: Rendered,
        health: Health,
        status: Callable[[], dict[str, Any]] | None,
        verdict: Callable[[], Verdict] | None,
        history: Callable[[Sequence[str]], dict[str, Any]] | None,
        wait: Waiting | None,
        page: Callable[[], Answer],
        beside: Beside,
        access: Access,
        tls: EndpointTls | None,
        who: str,
    ) -> None:
        self.who = who
        self.page = page
        self.beside = beside
        self.tls = tls
        self.verdict = verdict
        self.history = history
        self.wait = wait
        self.access = access
        if isinstance(address, str):
            self.address_family = AF_UNIX
        else:
            self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        self.metrics = metrics
        self.health = health
        self.status = status
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, float] = {}
        """Until when each is to have asked, by the monotonic clock."""
        super().__init__(address, _Request)  # type: ignore[arg-type]  # of the family AF_UNIX an address is a path

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self.tls is None:
            return connection, address
        try:
            return self.tls.secured(connection), address
        except OSError:
            connection.close()
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - the base class's names
        """Where there are too many already, those go that have not asked yet, the oldest first; a new one is turned
        away only if all others are being answered.
        """
        with self._lock:
            if len(self._connections) >= MOST_CONNECTIONS:
                oldest = min(self._connections, key=self._connections.__getitem__)
                if self._connections[oldest] == math.inf:
                    return False
                self._connections[oldest] = math.inf
                _end(oldest)
            self._connections[request] = time.monotonic() + _SOCKET_SECONDS
        return True

    def service_actions(self) -> None:
        """A client that sends its request byte by byte holds a connection for as long as any other."""
        with self._lock:
            now = time.monotonic()
            for request in [request for request, end in self._connections.items() if end < now]:
                self._connections[request] = math.inf
                _end(request)

    def has_asked(self, request: Any) -> None:
        """The request is read; its answer has a time of its own."""
        with self._lock:
            self._connections[request] = math.inf

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no event."""

    def server_bind(self) -> None:
        """Without HTTPServer's look-up of the host's name, which can take seconds."""
        TCPServer.server_bind(self)


def _end(connection: socket.socket) -> None:
    """Whoever waits for it, in whatever thread, finds it closed. (A method of TLS would belong to one thread.)"""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SOCKET_SECONDS
    server_version = "sluice"
    sys_version = ""

    def setup(self) -> None:
        """In the thread of the request: who is slow to shake hands keeps nobody else waiting."""
        if isinstance(self.request, ssl.SSLSocket):
            self.request.settimeout(_SOCKET_SECONDS)
            self.request.do_handshake()
        super().setup()

    @property
    def _certified(self) -> bool:
        """The client has shown a certificate of our authority, or needs none."""
        certificate = self.request.getpeercert() if isinstance(self.request, ssl.SSLSocket) else None
        return bool(certificate) or not self.server.access.certificates

    def do_HEAD(self) -> None:
        """What GET answers, without its content."""
        self.do_GET()

    def do_GET(self) -> None:
        self.server.has_asked(self.request)
        health = self.server.health
        path, _, query = self.path.partition("?")
        if path not in _PROBES and (refusal := self._refusal()) is not None:
            self._give(refusal)
        elif path == "/" and self.server.status is not None:
            self._give(self.server.page())
        elif path == "/metrics":
            self._answer(200, self.server.metrics.render(), _METRICS_TYPE)
        elif path == "/livez":
            self._probe(health.live_problems())
        elif path == "/readyz" and self.server.verdict is not None:
            self._ready(self.server.verdict())
        elif path == "/readyz":
            self._probe(health.ready_problems())
        elif path == "/startupz":
            self._probe(health.start_problems())
        elif path == "/status" and self.server.status is not None:
            self._status(self.server.status)
        elif path == "/history" and self.server.history is not None:
            tables = parse_qs(query, errors="replace").get("table", [])
            self._answer(200, json.dumps(self.server.history(tables)).encode() + b"\n", "application/json")
        elif path == "/wait" and self.server.wait is not None:
            code, said = self.server.wait(parse_qs(query, keep_blank_values=True, errors="replace"))
            self._answer(code, json.dumps(said).encode() + b"\n", "application/json")
        else:
            self._give(self.server.beside(path, query) or Answer(404, self._paths))

    def _refusal(self) -> Answer | None:
        """To who may not read what is asked for."""
        if self._is_rebound:
            return Answer(403, _REBOUND)
        if not self._certified:
            return Answer(403, b"a client certificate is needed\n")
        if not self.server.access.allows(self.headers["Authorization"]):
            return Answer(401, b"a token is needed\n", headers={"WWW-Authenticate": CHALLENGE})
        return None

    @property
    def _is_rebound(self) -> bool:
        return self.server.access.is_rebound(self.headers["Host"])

    @property
    def _is_terse(self) -> bool:
        """Probes say no more than whether they pass."""
        return self.server.access.guarded or self._is_rebound

    @property
    def _paths(self) -> bytes:
        if self.server.status is None:
            return b"/metrics /livez /readyz /startupz /wait\n"
        return b"/ /metrics /livez /readyz /startupz /status /history\n"

    def _probe(self, problems: list[str]) -> None:
        said = "; ".join(problems) if not self._is_terse or not problems else "not ok"
        self._answer(503 if problems else 200, (said or "ok").encode() + b"\n", _TEXT)

    def _ready(self, verdict: Verdict) -> None:
        lines = verdict.lines()[: 1 if self._is_terse else None]
        self._answer(200 if verdict.carrying else 503, "".join(f"{line}\n" for line in lines).encode(), _TEXT)

    def _status(self, ask: Callable[[], dict[str, Any]]) -> None:
        try:
            status, code = ask(), 200
        except ServiceError as error:
            status, code = {"error": {"class": type(error).__name__, "message": str(error)}}, 503
            if self.server.verdict is not None:
                verdict = self.server.verdict()
                status |= {
                    "schema_version": 1,
                    "state": verdict.state,
                    "headline": verdict.headline,
                    "problems": verdict.to_json(),
                }
        self._answer(code, json.dumps(status).encode() + b"\n", "application/json")

    def _give(self, answer: Answer) -> None:
        self._answer(answer.code, answer.content, answer.content_type, headers=answer.headers)

    def _answer(
        self, code: int, content: bytes, content_type: str, *, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        if self.server.who:
            self.send_header(_WHO, self.server.who)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Probes and scrapes are not logged."""
