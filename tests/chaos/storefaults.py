"""Where a story's spool lies, and what may happen to it there: a disk that is full or cannot be
written, an S3 server that answers wrongly.

Mounting a file system of one's own needs root; an ordinary user takes rights away instead, which
root would not notice. Every damage is undone by `heal`.
"""

import contextlib
import os
import random
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3

from tests.support.s3proxy_faults import (
    S3FaultProxy,
    delayed,
    error,
    error_after,
    reset_after,
    reset_before,
    stale_list,
    truncated,
)
from tools.local.s3 import S3Server

DISK = "64m"
AT_RANDOM = (
    error(503, "SlowDown"),
    error(500, "InternalError"),
    error_after(500, "InternalError"),
    reset_before(),
    reset_after(),
    truncated(),
    delayed(0.2),
)


class Place:
    """A local folder. `mounted` says that a file system of its own is there."""

    def __init__(self, folder: Path, *, mounted: bool = False) -> None:
        self.folder = folder
        self.name = "local disk of its own" if mounted else "local folder"
        self.mounted = mounted
        self.filler = folder / "filler"
        self._away = folder / "away"
        self._changed_rights: list[tuple[Path, int]] = []

    @property
    def uri(self) -> str:
        return (self.folder / "spool").as_uri()

    @property
    def options(self) -> dict[str, str]:
        return {}

    def reader(self, pipeline: str) -> Path | Callable[[str], bytes | None]:
        """The pipeline's own objects, for the oracle of acknowledgements."""
        return self.folder / "spool" / pipeline

    def fetched(self, pipeline: str) -> Path:
        """The pipeline's prefix as a local folder, to be read whole."""
        return self.folder / "spool" / pipeline

    def hurt(self, choice: random.Random) -> str:
        ways: list[tuple[str, Callable[[], None]]] = [
            ("store: full disk", self.fill),
            ("store: read-only", self._forbid),
        ]
        if not self.mounted:
            ways = (
                [("store: permission lost", self._revoke)]
                if os.geteuid() != 0
                else [("store: untouched (no file system of its own)", lambda: None)]
            )
        name, do = choice.choice(ways)
        do()
        return name

    def heal(self) -> None:
        if self.mounted:
            subprocess.run(["mount", "-o", "remount,rw", str(self.folder)], check=False, capture_output=True)
        self.filler.unlink(missing_ok=True)
        while self._changed_rights:
            path, mode = self._changed_rights.pop()
            path.chmod(mode)

    def fill(self) -> None:
        with contextlib.suppress(OSError), self.filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass

    def _forbid(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=False, capture_output=True)

    def _revoke(self) -> None:
        for path in [one for one in self.folder.rglob("*") if one.is_dir()]:
            self._changed_rights.append((path, path.stat().st_mode & 0o7777))
        for path, _ in self._changed_rights:
            path.chmod(0o555)


class Bucket(Place):
    """An S3 server behind a proxy that answers wrongly when a test asks for it. The oracle reads past
    the proxy.
    """

    def __init__(self, folder: Path, server: S3Server) -> None:
        super().__init__(folder)
        self.name = "S3"
        self.proxy = S3FaultProxy(server.port)
        self._server = server
        self._bucket = f"chaos-{uuid.uuid4().hex[:10]}"
        server.create_bucket(self._bucket)
        options = server.options()
        self._client = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            region_name=options["region"],
            aws_access_key_id=options["access_key_id"],
            aws_secret_access_key=options["secret_access_key"],
        )

    @property
    def uri(self) -> str:
        return f"s3://{self._bucket}/spool"

    @property
    def options(self) -> dict[str, str]:
        return {**self._server.options(), "endpoint": self.proxy.endpoint}

    def reader(self, pipeline: str) -> Callable[[str], bytes | None]:
        def read(key: str) -> bytes | None:
            try:
                content: bytes = self._client.get_object(Bucket=self._bucket, Key=f"spool/{pipeline}/{key}")[
                    "Body"
                ].read()
            except self._client.exceptions.NoSuchKey:
                return None
            return content

        return read

    def fetched(self, pipeline: str) -> Path:
        prefix = f"spool/{pipeline}/"
        target = self.folder / "fetched"
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix):
            for item in page.get("Contents", ()):
                path = target / item["Key"].removeprefix(prefix)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._client.download_file(self._bucket, item["Key"], str(path))
        return target

    def hurt(self, choice: random.Random) -> str:
        unclear = choice.choice([error(409, "ConditionalRequestConflict"), error(412, "PreconditionFailed")])
        seed = choice.randrange(10**6)
        ways: list[tuple[str, Callable[[], object]]] = [
            ("S3: 403", lambda: self.proxy.plan(error(403, "AccessDenied"), operations={"put"})),
            ("S3: 404", lambda: self.proxy.plan(error(404, "NoSuchUpload"), operations={"put"})),
            ("S3: 409 or 412", lambda: self.proxy.plan(unclear, operations={"create"})),
            ("S3: reset after storing", lambda: self.proxy.plan(reset_after(), operations={"create"})),
            ("S3: stale list", lambda: self.proxy.plan(stale_list(2), operations={"list"}, count=3)),
            ("S3: held", self.proxy.hold),
            ("S3: faults at random", lambda: self.proxy.at_random(0.2, AT_RANDOM, seed=seed)),
        ]
        name, do = choice.choice(ways)
        do()
        return name

    def heal(self) -> None:
        self.proxy.calm()

    def close(self) -> None:
        self.proxy.close()
        self._client.close()


def local(folder: Path) -> Place:
    folder.mkdir(parents=True, exist_ok=True)
    return Place(folder)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Place]:
    """A file system of its own where that is possible, else a plain folder."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if mount is None or os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        yield Place(folder)
        return
    place = Place(folder, mounted=True)
    try:
        yield place
    finally:
        place.heal()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def bucket(folder: Path, server: S3Server) -> Iterator[Place]:
    folder.mkdir(parents=True, exist_ok=True)
    place = Bucket(folder, server)
    try:
        yield place
    finally:
        place.close()
