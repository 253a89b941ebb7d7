"""Health over real HTTP: liveness watches this process only, and the port has no other verb."""

import base64
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import StoreUnavailable, WriterFenced
from sluice.health import endpoint
from sluice.health.endpoint import NO_TLS, CannotListen, Health, HealthServer
from sluice.health.tls import TlsFiles
from sluice.telemetry.metrics import Metrics
from tests.support.answers import ask, serving
from tests.support.authority import Authority


class Served:
    def __init__(self) -> None:
        self.now, self.failure = 0.0, list[Exception]()
        metrics = Metrics("shop")
        self.health = Health(metrics, monotonic=lambda: self.now)
        self.server = HealthServer("127.0.0.1:0", metrics=metrics, health=self.health, status=self._status)

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        return ask(self.server.address, path, method)

    def _status(self) -> dict[str, Any]:
        for failure in self.failure:
            raise failure
        return {"schema_version": 1}


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.server.close()


def test_a_loop_that_stopped_going_round_is_not_alive_unless_it_ended_on_purpose(served: Served) -> None:
    served.health.beat("events")
    assert served.get("/livez") == (200, "ok\n")
    served.now = 61.0
    code, said = served.get("/livez")
    assert (code, said) == (503, "loop events has not gone round for 61 s\n")
    served.health.beat("events")
    assert served.get("/livez")[0] == 200
    served.health.retire("events")
    served.now = 1000.0
    assert served.get("/livez")[0] == 200


def test_a_step_past_its_own_deadline_is_not_alive_and_a_long_one_within_it_is(served: Served) -> None:
    with served.health.step("upload", 300.0):
        served.now = 299.0
        assert served.get("/livez")[0] == 200
        served.now = 310.0
        assert served.get("/livez") == (503, "step upload is 10 s past its deadline\n")
    assert served.get("/livez")[0] == 200


def test_started_and_ready_are_different_answers(served: Served) -> None:
    assert served.get("/startupz")[0] == 503
    served.health.started()
    assert served.get("/startupz")[0] == 200
    assert served.get("/readyz") == (503, "starting\n")
    served.health.ready()
    assert served.get("/readyz")[0] == 200
    served.health.not_ready("draining")
    assert served.get("/readyz") == (503, "draining\n")


def test_metrics_and_status_are_served(served: Served) -> None:
    served.health.beat("events")
    code, text = served.get("/metrics")
    assert code == 200
    assert 'sluice_heartbeat_timestamp_seconds{loop="events",pipeline="shop"}' in text
    assert json.loads(served.get("/status")[1]) == {"schema_version": 1}


def test_a_status_that_cannot_be_had_says_why_and_liveness_does_not_care(served: Served) -> None:
    served.failure.append(StoreUnavailable("s3://bucket did not answer"))
    code, text = served.get("/status")
    assert (code, json.loads(text)["error"]["class"]) == (503, "StoreUnavailable")
    assert served.get("/livez")[0] == 200


@pytest.mark.parametrize("path", ["/", "/metrics", "/livez", "/readyz", "/startupz", "/status", "/drop"])
def test_head_answers_as_get_does_without_the_content(served: Served, path: str) -> None:
    code, content = served.get(path)
    assert content
    assert served.get(path, "HEAD") == (code, "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_the_port_changes_nothing(served: Served, method: str) -> None:
    assert served.get("/status", method)[0] == 501
    assert served.get("/drop")[0] == 404


def test_a_client_that_asks_byte_by_byte_is_not_waited_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_SOCKET_SECONDS", 0.5)
    end = time.monotonic() + 30
    with connected(served) as slow, pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):  # noqa: PT012 - one client
        while time.monotonic() < end:
            slow.sendall(b"G")
            time.sleep(0.05)


def test_idle_connections_neither_pile_up_nor_keep_probes_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MOST_CONNECTIONS", 4)
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(served)) for _ in range(12)]
        assert served.get("/livez") == (200, "ok\n")
        assert [one.recv(1) for one in idle[:8]] == [b""] * 8


def connected(served: Served) -> socket.socket:
    host, _, port = served.server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)


def test_a_token_is_asked_for_by_all_but_the_probes_and_can_be_rotated(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first-token\n")

    def basic(password: str) -> str:
        return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()

    with serving(status=dict, token_file=str(token)) as (address, health):

        def get(path: str, authorization: str = "") -> tuple[int, str]:
            return ask(address, path, authorization=authorization)

        health.not_ready("connecting to table public.secret")
        assert get("/livez") == (200, "ok\n")
        for path in ("/readyz", "/startupz"):
            assert get(path) == (503, "not ok\n"), "who has no token learns whether it is ready, and no name"
        for path in ("/", "/metrics", "/status", "/elsewhere"):
            plain = ("", "Bearer wrong", "Bearer", "Basic !", "Basic \xe9", "Bearer \xe9", "first-token")
            for wrong in (*plain, basic("wrong"), basic("")):
                assert get(path, wrong) == (401, "a token is needed\n")
        for path in ("/", "/metrics", "/status"):
            assert [get(path, given)[0] for given in ("Bearer first-token", basic("first-token"))] == [200, 200]
        token.write_text("second-token")
        assert get("/metrics", "Bearer first-token")[0] == 401
        assert get("/metrics", "Bearer second-token")[0] == 200
        for nothing in ("", "\n"):
            token.write_text(nothing)
            assert get("/metrics", "Bearer ")[0] == 401
        token.unlink()
        assert get("/metrics", "Bearer second-token")[0] == 401


FOREIGN = ("evil.example:{port}", "localhost.evil.example:{port}", "127.0.0.1.evil.example:{port}", "[bad:{port}")
KNOWN = ("127.0.0.1:{port}", "[::1]:{port}", "10.1.2.3:{port}", "LOCALHOST:{port}", "localhost.:{port}", None)
PROXIED = ("status.example", "status.example:8443")


def test_a_page_whose_name_was_led_to_this_machine_reads_nothing_and_probes_go_on(served: Served) -> None:
    port = served.server.address.rpartition(":")[2]
    for name in FOREIGN:
        for path in ("/", "/metrics", "/status", "/history", "/elsewhere"):
            code, said = named(served.server.address, path, name.format(port=port))
            assert (code, "set a token" in said) == (403, True), (name, path)
        assert named(served.server.address, "/livez", name.format(port=port)) == (200, "ok\n")
        assert named(served.server.address, "/readyz", name.format(port=port)) == (503, "not ok\n")
    for known in (*KNOWN, *PROXIED):
        asked = None if known is None else known.format(port=port)
        assert named(served.server.address, "/status", asked)[0] == 200, known
        assert named(served.server.address, "/readyz", asked) == (503, "starting\n")


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "localhost:0", "127.0.0.1:0"])
@pytest.mark.parametrize("guarded", [False, True])
def test_a_name_is_asked_for_freely_where_others_get_there_or_a_token_is_needed(
    tmp_path: Path, listen: str, guarded: bool
) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    metrics = Metrics("shop")
    server = HealthServer(listen, metrics=metrics, health=Health(metrics), token_file=str(token) if guarded else "")
    try:
        port = server.address.rpartition(":")[2]
        answer = named(f"127.0.0.1:{port}", "/metrics", f"sluice.shop.svc:{port}", authorization="Bearer s3cret")
        assert answer[0] == (200 if guarded or listen.startswith("0") else 403)
    finally:
        server.close()


def named(address: str, path: str, host: str | None, *, authorization: str = "") -> tuple[int, str]:
    """The answer to a request with this Host; None: with none."""
    with closing(http.client.HTTPConnection(address, timeout=30)) as connection:
        connection.putrequest("GET", path, skip_host=True)
        for name, value in (("Host", host), ("Authorization", authorization)):
            if value:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("secured", [False, True])
def test_a_client_that_takes_its_answer_byte_by_byte_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secured: bool
) -> None:
    """Though each piece of it goes on in time. There is a place for one connection."""
    monkeypatch.setattr(endpoint._Request, "timeout", 1.0)
    monkeypatch.setattr(endpoint, "MOST_CONNECTIONS", 1)
    authority = Authority(tmp_path, "servers")
    cert, key = authority.pair("endpoint")
    content = {"schema_version": 1, "long": "x" * (16 << 20)}
    tls = TlsFiles(str(cert), str(key)) if secured else NO_TLS
    ended = threading.Event()
    with serving(status=lambda: content, tls=tls) as (address, _), ExitStack() as stack:
        host, _, port = address.rpartition(":")
        client = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        if secured:
            client = stack.enter_context(anybody().wrap_socket(client))
        client.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        assert client.recv(1), "it is being answered"

        def take() -> None:
            with suppress(OSError):
                while not ended.wait(0.02) and client.recv(65_536):
                    pass

        taking = threading.Thread(target=take)
        taking.start()
        began = time.monotonic()
        try:
            while True:
                with suppress(OSError, http.client.HTTPException):
                    code, _ = authority.get(address, "/livez") if secured else ask(address, "/livez")
                    assert code == 200
                    break
                assert time.monotonic() - began < 10
                time.sleep(0.1)
        finally:
            ended.set()
            taking.join()


def test_a_client_that_shakes_hands_byte_by_byte_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_SOCKET_SECONDS", 0.5)
    cert, key = Authority(tmp_path, "servers").pair("endpoint")
    with serving(tls=TlsFiles(str(cert), str(key))) as (address, _):
        host, _, port = address.rpartition(":")
        hello = ssl.MemoryBIO()
        shaking = anybody().wrap_bio(ssl.MemoryBIO(), hello)
        with suppress(ssl.SSLWantReadError):
            shaking.do_handshake()
        with socket.create_connection((host, int(port)), timeout=5) as slow:
            end = time.monotonic() + 30
            with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):  # noqa: PT012 - one client
                for byte in hello.read():
                    assert time.monotonic() < end
                    slow.sendall(bytes([byte]))
                    time.sleep(0.05)


def anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_history_is_of_the_tables_that_are_asked_for_by_their_names() -> None:
    asked: list[list[str]] = []

    def history(tables: Sequence[str]) -> dict[str, Any]:
        asked.append(list(tables))
        return {"tables": {}}

    with serving(history=history) as (address, _):
        answer = ask(address, "/history?table=public.a%26b&table=x.%22y%22&other=1")
        assert answer == (200, '{"tables": {}}\n')
        assert ask(address, "/history")[0] == 200
    assert asked == [["public.a&b", 'x."y"'], []]


@pytest.mark.parametrize("secured", [False, True])
def test_a_process_of_which_only_one_may_run_knows_the_one_that_has_its_address(tmp_path: Path, secured: bool) -> None:
    metrics = Metrics("shop")
    tls = NO_TLS
    if secured:
        authority = Authority(tmp_path, "servers")
        cert, key = authority.pair("endpoint")
        tls = TlsFiles(str(cert), str(key), str(authority.path))

    def listening(address: str, *process: str) -> HealthServer:
        return HealthServer(address, metrics=metrics, health=Health(metrics), tls=tls, process=process)

    first = listening("127.0.0.1:0", "applier", "shop", "file:///spool")
    try:
        with pytest.raises(WriterFenced, match=f"another applier runs this pipeline: it listens on {first.address}"):
            listening(first.address, "applier", "shop", "file:///spool")
        for other in (("process", "shop", "file:///spool"), ("applier", "shop", "file:///another"), ()):
            with pytest.raises(CannotListen, match="cannot listen on"):
                listening(first.address, *other)
    finally:
        first.close()
