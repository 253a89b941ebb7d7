"""A server of HTTP on the loopback, for stubs of what others run."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

ServerT = TypeVar("ServerT", bound=ThreadingHTTPServer)


class StubHandler(BaseHTTPRequestHandler):
    """Says nothing on its own, and what it answers in one call. No connection outlives its answer."""

    def log_message(self, *_: object) -> None:
        """Tests have nothing to read there."""

    def content(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(
        self, status: int, content: bytes = b"", headers: Mapping[str, str] | None = None, *, body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


@contextmanager
def serving(server: ServerT) -> Iterator[ServerT]:
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
