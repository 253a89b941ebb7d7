"""Sessions whose blocking calls can be ended from another thread."""

import socket
import struct
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from sluice.errors import SourceUnavailable
from sluice.source.cancelling import Cancellation


class Session:
    """What is used of one, over a socket whose other end has reset the connection."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.socket = socket.create_connection(listener.getsockname())
            peer, _ = listener.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        with pytest.raises(ConnectionResetError):
            self.socket.recv(1)
        self.pgconn = SimpleNamespace(socket=self.socket.fileno())

    def cancel_safe(self, *, timeout: float) -> None:
        raise psycopg.OperationalError(f"the server does not answer within {timeout:g} s")

    def close(self) -> None:
        self.socket.close()


def test_a_connection_that_is_reset_as_soon_as_it_is_there_is_left_to_who_asks_over_it() -> None:
    """Which finds it lost, and that may pass: a server that is killed, or a load balancer that ends it."""
    cancellation = Cancellation()
    with closing(Session()) as session:
        given: Any = session
        assert cancellation.connected(lambda: given) is given
        cancellation.cancel()
        with pytest.raises(SourceUnavailable):
            cancellation.connected(lambda: given)
