"""A TCP proxy between Sluice and PostgreSQL that knows where messages begin and end.

It is the witness of the one rule: every standby status message is recorded, and shown to a hook
*before* the server can read it, so that a test can compare the flush position with what the store
holds at that very moment. It also breaks connections at chosen messages and holds traffic back. It
changes no byte unless it was asked to with `change`. Plain TCP only. (PostgreSQL: Frontend/Backend
Protocol, Streaming Replication Protocol.)
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from tests.support import canary

_STARTUP_ANSWERED_BY_ONE_BYTE = (80877103, 80877104)
"""SSLRequest and GSSENCRequest."""
_READ_BYTES = 1 << 18
_HEADER_BYTES = 25
"""Of an XLogData message, letter included."""
_STATUS = struct.Struct(">QQQqB")


class Direction(Enum):
    TO_SERVER = "to server"
    TO_CLIENT = "to client"


class Cut(Enum):
    """Behind the message the connection falls silent in its direction, until `drop` or until an end closes it."""

    BEFORE = "before"
    INSIDE = "inside"
    AFTER = "after"
    SILENT = "silent"
    """Right behind the message the connection falls silent in its direction; it stays up until
    `drop` or until an end closes it.
    """


@dataclass(frozen=True, slots=True)
class Message:
    """One protocol message. `kind` is its type letter (`d` is CopyData); `body` has neither letter nor length."""

    connection: int
    direction: Direction
    kind: str
    body: bytes

    @property
    def tag(self) -> str:
        """pgoutput's letter in an XLogData message, `k` for a keepalive, `r` for a status message, else empty."""
        if self.kind != "d" or not self.body:
            return ""
        outer = chr(self.body[0])
        return chr(self.body[25]) if outer == "w" and len(self.body) > 25 else outer


@dataclass(frozen=True, slots=True)
class Status:
    """A standby status message as it went over the wire, `at` on the monotonic clock."""

    connection: int
    at: float
    write: int
    flush: int
    apply: int
    reply_requested: bool


def _is_copy_data(message: Message) -> bool:
    return message.kind == "d"


@dataclass
class _Rule:
    """Breaks a connection at the `count`-th message that matches, or changes that message's body."""

    direction: Direction
    matches: Callable[[Message], bool]
    count: int
    cut: Cut | None = None
    change: Callable[[bytes], bytes] | None = None
    fired: threading.Event = field(default_factory=threading.Event)


class PgProxy:
    """Listens on 127.0.0.1 and forwards to `target_port` there, from construction to `close`.

    `on_status` runs in the forwarding thread. What it raises is kept in `violations`, and breaks
    the connection so that the server never sees the message; `check` raises the first.
    """

    def __init__(self, target_port: int, *, on_status: Callable[[Status], None] | None = None) -> None:
        self.statuses: list[Status] = []
        self.violations: list[BaseException] = []
        self.refuse_connections = False
        self._target_port = target_port
        self._on_status = on_status
        self._rules: list[_Rule] = []
        self._open = {direction: threading.Event() for direction in Direction}
        for gate in self._open.values():
            gate.set()
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._sockets: list[socket.socket] = []
        self._silent: list[threading.Event] = []
        self._threads: list[threading.Thread] = []
        self._connections = 0
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def dsn(self, *, user: str = "postgres", dbname: str = "postgres") -> str:
        """With a password that must not be seen."""
        return canary.with_password(f"postgresql://{user}@127.0.0.1:{self.port}/{dbname}")

    @property
    def connections(self) -> int:
        return self._connections

    @property
    def flushed(self) -> int:
        """The greatest flush position that the server received, 0 before the first."""
        with self._lock:
            return max((status.flush for status in self.statuses), default=0)

    def cut(
        self,
        where: Cut,
        *,
        count: int = 1,
        direction: Direction = Direction.TO_CLIENT,
        matches: Callable[[Message], bool] = _is_copy_data,
    ) -> threading.Event:
        """Breaks the connection once, at the `count`-th coming message that matches (any CopyData
        by default). The event tells when it has.
        """
        return self._planned(_Rule(direction, matches, count, where))

    def change(
        self,
        how: Callable[[bytes], bytes],
        *,
        direction: Direction = Direction.TO_CLIENT,
        matches: Callable[[Message], bool] = _is_copy_data,
    ) -> threading.Event:
        """Replaces the body of the next message that matches (any CopyData by default) by what `how` makes of it, once;
        its length follows.

        `corrupted`, `lengthened` and `shortened` are such changes. The event tells when it has
        happened.
        """
        return self._planned(_Rule(direction, matches, 1, change=how))

    def _planned(self, rule: _Rule) -> threading.Event:
        with self._lock:
            self._rules.append(rule)
        return rule.fired

    def lead_to(self, target_port: int) -> None:
        """From now on new connections are forwarded there; those that there are stay."""
        self._target_port = target_port

    def forget(self) -> None:
        with self._lock:
            self._rules.clear()

    def hold(self, direction: Direction) -> None:
        """Forwards nothing in this direction until `release`; the connections stay up."""
        self._open[direction].clear()

    def release(self, direction: Direction) -> None:
        self._open[direction].set()

    def drop(self) -> None:
        """Breaks every connection at once. New ones are accepted."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
            silent, self._silent = self._silent, []
        for wake in silent:
            wake.set()
        for endpoint in sockets:
            _break(endpoint)

    def wait_for_status(self, wanted: Callable[[Status], bool], *, timeout: float = 30.0) -> Status:
        """The first recorded status message that is as `wanted`, waiting for it if need be. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(lambda: any(map(wanted, self.statuses)), timeout):
                raise TimeoutError("no such status message passed the proxy")
            return next(status for status in self.statuses if wanted(status))

    def check(self) -> None:
        """Raises what the hook first objected to."""
        if self.violations:
            raise self.violations[0]

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for gate in self._open.values():
            gate.set()
        self.drop()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuse_connections:
                _break(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port), timeout=10)
            except OSError:
                _break(client)
                continue
            server.settimeout(None)
            for endpoint in (client, server):
                endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._connections += 1
                self._sockets += [client, server]
                number = self._connections
            wire = _Wire(number)
            self._start(self._forward, client, server, Direction.TO_SERVER, wire)
            self._start(self._forward, server, client, Direction.TO_CLIENT, wire)

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _forward(self, source: socket.socket, sink: socket.socket, direction: Direction, wire: "_Wire") -> None:
        gate = self._open[direction]
        pending = bytearray()
        try:
            while received := source.recv(_READ_BYTES):
                pending += received
                gate.wait()
                done, cut = self._pass(pending, direction, wire)
                sink.sendall(pending[:done])
                if cut is Cut.SILENT:
                    self._fall_silent()
                if cut is not None:
                    break
                del pending[:done]
            else:
                # An orderly end (the server's or the client's last words) stays orderly on the
                # other side.
                sink.sendall(pending)
                sink.shutdown(socket.SHUT_WR)
                return
        except OSError:
            pass
        _break(source)
        _break(sink)

    def _fall_silent(self) -> None:
        wake = threading.Event()
        with self._lock:
            self._silent.append(wake)
        wake.wait()

    def _pass(self, pending: bytearray, direction: Direction, wire: "_Wire") -> tuple[int, Cut | None]:
        """How many of `pending`'s bytes may go, all in whole messages unless a rule cuts inside
        one; and how the connection ends then, if it does.
        """
        at = 0
        while (length := wire.next_length(pending, at, direction)) is not None:
            message = wire.message(pending, at, length, direction)
            if message is not None:
                rule = self._rule_at(message)
                cut = rule.cut if rule is not None else None
                if rule is not None and rule.change is not None:
                    body = rule.change(message.body)
                    pending[at : at + length] = message.kind.encode("latin-1") + struct.pack(">I", len(body) + 4) + body
                    length = len(body) + 5
                if cut is Cut.BEFORE or not self._witness(message):
                    return at, Cut.BEFORE
                if cut is not None:
                    return at + (max(length // 2, 1) if cut is Cut.INSIDE else length), cut
            at += length
        return at, None

    def _rule_at(self, message: Message) -> _Rule | None:
        with self._lock:
            for rule in self._rules:
                if rule.direction is message.direction and rule.matches(message):
                    rule.count -= 1
                    if rule.count == 0:
                        self._rules.remove(rule)
                        rule.fired.set()
                        return rule
        return None

    def _witness(self, message: Message) -> bool:
        if message.direction is not Direction.TO_SERVER or message.tag != "r" or len(message.body) != 1 + _STATUS.size:
            return True
        write, flush, apply, _, reply = _STATUS.unpack(message.body[1:])
        status = Status(message.connection, time.monotonic(), write, flush, apply, bool(reply))
        try:
            if self._on_status is not None:
                self._on_status(status)
        except Exception as objection:  # noqa: BLE001  whatever the oracle says is the test's to judge
            self.violations.append(objection)
            return False
        with self._news:
            self.statuses.append(status)
            self._news.notify_all()
        return True


class _Wire:
    """Where one connection is in its conversation: before the StartupMessage messages have no type letter."""

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._started = False
        self._one_byte_answers = 0

    def next_length(self, pending: bytearray, at: int, direction: Direction) -> int | None:
        """Bytes of the next message, None when it is not there whole."""
        if direction is Direction.TO_CLIENT and self._one_byte_answers and len(pending) > at:
            return 1
        prefix = 0 if direction is Direction.TO_SERVER and not self._started else 1
        if len(pending) < at + prefix + 4:
            return None
        length = prefix + int.from_bytes(pending[at + prefix : at + prefix + 4], "big")
        return length if len(pending) >= at + length else None

    def message(self, pending: bytearray, at: int, length: int, direction: Direction) -> Message | None:
        """The message itself; None for the untyped ones around the start."""
        if direction is Direction.TO_CLIENT and self._one_byte_answers:
            self._one_byte_answers -= 1
            return None
        if direction is Direction.TO_SERVER and not self._started:
            if int.from_bytes(pending[at + 4 : at + 8], "big") in _STARTUP_ANSWERED_BY_ONE_BYTE:
                self._one_byte_answers += 1
            else:
                self._started = True
            return None
        return Message(self._connection, direction, chr(pending[at]), bytes(pending[at + 5 : at + length]))


def corrupted(body: bytes) -> bytes:
    """One byte in the middle of what follows the stream's own header is another one."""
    at = (min(_HEADER_BYTES, len(body) - 1) + len(body)) // 2
    return body[:at] + bytes([body[at] ^ 0x55]) + body[at + 1 :]


def head_corrupted(body: bytes) -> bytes:
    """The pgoutput message's letter is none that exists."""
    return body[:_HEADER_BYTES] + b"\xff" + body[_HEADER_BYTES + 1 :]


def lengthened(body: bytes) -> bytes:
    """One byte too many at the end."""
    return body + b"\x00"


def shortened(body: bytes) -> bytes:
    """One byte too few at the end."""
    return body[:-1]


def _break(endpoint: socket.socket) -> None:
    # The shutdown wakes a thread that waits in recv; closing alone would not.
    with contextlib.suppress(OSError):
        endpoint.shutdown(socket.SHUT_RDWR)
    endpoint.close()
