"""A collector on the loopback: keeps what is posted to it, and can be slow, or refuse."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer

from tests.support.http_stub import StubHandler, serving
from tools.local.ports import free_port


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Collector:
    """`code` is what it answers, and while `answers` is not set it does not."""

    port: int = field(default_factory=free_port)
    code: int = 200
    requests: list[Request] = field(default_factory=list)
    asked: int = 0
    """Requests, whatever the answer; `requests` has those that were taken."""
    answers: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @contextmanager
    def listening(self) -> Iterator["Collector"]:
        """Outside the block nobody listens."""
        collector = self
        self.answers.set()

        class Handler(StubHandler):
            def do_POST(self) -> None:
                body = self.content()
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.asked += 1
                collector.answers.wait(60)
                if collector.code == 200:
                    collector.requests.append(Request(self.path, dict(self.headers.items()), body))
                self.answer(collector.code, b"" if collector.code == 200 else b"canary-of-the-collector")

        with serving(ThreadingHTTPServer(("127.0.0.1", self.port), Handler)):
            try:
                yield self
            finally:
                self.answers.set()
