"""A server that is too old is recognised by its version. The fake one here ends a connection whose `options` name a
setting that it does not have, as a real one does. (PostgreSQL: Message Flow, Start-up.)
"""

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from sluice.errors import SourceRefused
from sluice.operate.check.preflight import run_preflight
from sluice.source import refused_connections
from sluice.source.sessions import SourceOptions, open_query, open_replication

NEWER_THAN_13 = ("idle_session_timeout", "transaction_timeout")


def _message(tag: bytes, body: bytes) -> bytes:
    return tag + struct.pack(">I", len(body) + 4) + body


def _answer(startup: bytes, version: str) -> bytes:
    unknown = next((name for name in NEWER_THAN_13 if name.encode() in startup), None)
    if unknown is not None:
        return _message(b"E", f'SFATAL\0VFATAL\0C42704\0Munrecognized configuration parameter "{unknown}"\0\0'.encode())
    statuses = {"server_version": version, "client_encoding": "UTF8", "standard_conforming_strings": "on"}
    sent = b"".join(_message(b"S", f"{name}\0{value}\0".encode()) for name, value in statuses.items())
    return _message(b"R", struct.pack(">I", 0)) + sent + _message(b"K", struct.pack(">II", 1, 1)) + _message(b"Z", b"I")


def _serve(listener: socket.socket, version: str) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            with client:
                startup = client.recv(65536)
                while startup[4:8] == struct.pack(">I", 80877103):  # SSLRequest
                    client.sendall(b"N")
                    startup = client.recv(65536)
                client.sendall(_answer(startup, version))
                client.recv(65536)


@pytest.fixture
def server_13() -> Iterator[SourceOptions]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=_serve, args=(listener, "13.23"), daemon=True)
        serving.start()
        dsn = f"postgresql://u@127.0.0.1:{listener.getsockname()[1]}/d"
        yield SourceOptions(dsn=dsn, slot="s", publication="p", application_name="a", connect_timeout_s=5)
        listener.shutdown(socket.SHUT_RDWR)
        serving.join(10)


@pytest.mark.parametrize("opener", [open_query, open_replication], ids=["query", "replication"])
def test_a_server_older_than_14_is_refused_by_its_version_with_exit_code_5(
    server_13: SourceOptions, opener: Callable[[SourceOptions], object]
) -> None:
    with pytest.raises(SourceRefused, match=r"the server is PostgreSQL 13; Sluice reads 14 and later") as caught:
        opener(server_13)
    assert (caught.value.exit_code, caught.value.hint) == (5, "upgrade the server")


def test_preflight_names_the_version_too(server_13: SourceOptions) -> None:
    (finding,) = run_preflight(server_13, None).findings
    assert (finding.severity, finding.code, finding.fix_setting) == ("critical", "server.version", "upgrade the server")
    assert "PostgreSQL 13" in finding.seen


def test_a_refusal_is_understood_where_python_has_no_files_in_memory(
    server_13: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, and where it was built for old versions of Linux."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(refused_connections, "_KNOWN", {})
    with pytest.raises(SourceRefused, match="PostgreSQL 13"):
        open_query(server_13)
