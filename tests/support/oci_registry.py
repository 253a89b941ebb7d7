"""An OCI registry on 127.0.0.1 that keeps what is pushed in memory: what Helm needs of the distribution specification.

Invariant: a blob or a manifest is found only by its digest, or by a tag that names one; what does not have the digest
that the client says is refused. (OCI Distribution Specification: pull, push.)
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.support.http_stub import StubHandler, serving

_PATH = re.compile(r"^/v2/(?P<name>.+)/(?P<what>blobs|manifests)/(?P<reference>.*)$")


class Registry(ThreadingHTTPServer):
    """`contents` are bytes and their media type by digest; `tags` digests by (repository, tag)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.contents: dict[str, tuple[str, bytes]] = {}
        self.tags: dict[tuple[str, str], str] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def keep(self, media_type: str, content: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.contents[digest] = (media_type, content)
        return digest


class _Handler(StubHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def do_HEAD(self) -> None:
        self._get(body=False)

    def do_GET(self) -> None:
        if self.path == "/v2/":
            self.answer(200)
        else:
            self._get(body=True)

    def do_POST(self) -> None:
        """An upload begins; its one address takes the whole blob."""
        self.answer(202, headers={"Location": f"{urlsplit(self.path).path.rstrip('/')}/one"})

    def do_PUT(self) -> None:
        content = self.content()
        given = urlsplit(self.path)
        media_type = self.headers.get("Content-Type", "application/octet-stream")
        digest = self.server.keep(media_type, content)
        if asked := parse_qs(given.query).get("digest"):
            self.answer(201 if asked == [digest] else 400, headers={"Docker-Content-Digest": digest})
            return
        match = _PATH.match(given.path)
        assert match
        if match["reference"] != digest:
            self.server.tags[match["name"], match["reference"]] = digest
        self.answer(201, headers={"Docker-Content-Digest": digest, "Location": given.path})

    def _get(self, *, body: bool) -> None:
        match = _PATH.match(self.path)
        digest = match["reference"] if match else ""
        if match and match["what"] == "manifests":
            digest = self.server.tags.get((match["name"], digest), digest)
        if digest not in self.server.contents:
            self.answer(404)
            return
        media_type, content = self.server.contents[digest]
        headers = {"Content-Type": media_type, "Docker-Content-Digest": digest}
        self.answer(200, content, headers, body=body)


@contextmanager
def running() -> Iterator[Registry]:
    with serving(Registry()) as registry:
        yield registry
