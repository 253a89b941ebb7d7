"""An S3-compatible server of our own on loopback: moto in a process of its own.

It honours conditional creates, which is what the spool needs of a store. Invariant: the process
does not outlive its owner. Keeps objects in memory: nothing survives a stop.
"""

import contextlib
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tools.local.child import Child
from tools.local.ports import free_port

_PROGRAM = Path(__file__).with_name("moto_server.py")
REGION = "us-east-1"
ACCESS_KEY = "test"
"""moto accepts any key; Sluice still has to send one."""


class S3Server:
    """One server on 127.0.0.1:`port`."""

    def __init__(self, *, port: int | None = None, log: Path | None = None) -> None:
        """`log` gets a line for each request."""
        self.port = port or free_port()
        self._child = Child(f"the local S3 server on port {self.port}", last_signal=signal.SIGKILL, log=log)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def start(self) -> None:
        """Returns when requests are answered. Does nothing when the server runs already."""
        if self.pid is None:
            command = [sys.executable, "-P", "-W", "ignore", str(_PROGRAM), str(self.port)]
            self._child.start(command, is_ready=lambda _pid: self._answers())

    def stop(self) -> None:
        self._child.stop(signal.SIGKILL)

    def create_bucket(self, name: str) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT"), timeout=10).close()  # noqa: S310  our own loopback address

    def options(self) -> dict[str, str]:
        """Object store options under which Sluice reaches this server."""
        return {
            "endpoint": self.endpoint,
            "region": REGION,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": ACCESS_KEY,
            "allow_http": "true",
            "virtual_hosted_style_request": "false",
        }

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


@contextlib.contextmanager
def running_s3(*, buckets: tuple[str, ...] = (), log: Path | None = None) -> Iterator[S3Server]:
    """A server with these buckets; stopped at the end. See S3Server."""
    server = S3Server(log=log)
    try:
        server.start()
        for bucket in buckets:
            server.create_bucket(bucket)
        yield server
    finally:
        server.stop()
