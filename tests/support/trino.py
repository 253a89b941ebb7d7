"""Trino on loopback: a SQL engine that finds Delta tables by their names in a catalog.

It is large, so that `make trino` alone fetches it, with Maven, into build/trino. It needs Java 24 or later.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools.local.guard import Guard
from tools.local.ports import free_port

VERSION, OLDEST_JAVA = "476", 24
SHA256 = "cfd5accde17e8ebd251eeeb78aed1f490e77bb3a164d95a0f454bf8a7c1cbd3f"
HOME = Path(__file__).parents[2] / "build" / "trino"
_PLUGINS = ("delta-lake",)
_START_SECONDS, _QUERY_SECONDS = 300.0, 300.0


class QueryRefused(Exception):
    """What Trino says of a statement that it does not run."""


@dataclass(frozen=True)
class Trino:
    port: int

    def query(self, statement: str) -> list[list[Any]]:
        """The rows of one statement, as Trino writes them in JSON. Raises QueryRefused."""
        answer = self._asked(f"http://127.0.0.1:{self.port}/v1/statement", statement.encode())
        rows: list[list[Any]] = []
        deadline = time.monotonic() + _QUERY_SECONDS
        while True:
            if error := answer.get("error"):
                raise QueryRefused(f"{error['errorName']}: {error['message']}")
            rows += answer.get("data", [])
            following = answer.get("nextUri")
            if not following:
                return rows
            if time.monotonic() > deadline:
                raise QueryRefused(f"no answer within {_QUERY_SECONDS:g} s")
            answer = self._asked(following)

    def _asked(self, uri: str, body: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(uri, data=body, headers={"X-Trino-User": "reader"})
        with urllib.request.urlopen(request, timeout=60) as response:
            found: dict[str, Any] = json.load(response)
            return found


def why_missing() -> str:
    """Why there is no Trino here, empty when there is one."""
    if not (HOME / ".done").exists():
        return "Trino is not in build/trino; `make trino` puts it there"
    return "" if java() is not None else f"Trino {VERSION} needs Java {OLDEST_JAVA} or later"


@cache
def java() -> Path | None:
    """The program of a Java that Trino runs on: of JAVA_HOME (or JAVA_HOME_25_X64, ...), on PATH, or where Debian
    installs them.
    """
    homes = [Path(value) for name, value in sorted(os.environ.items()) if name.startswith("JAVA_HOME")]
    if found := shutil.which("java"):
        homes.append(Path(found).resolve().parents[1])
    for home in (*homes, *sorted(Path("/usr/lib/jvm").glob("*"))):
        with suppress(OSError):
            version = re.search(r'JAVA_VERSION="(\d+)', (home / "release").read_text(encoding="utf-8"))
            if version and int(version[1]) >= OLDEST_JAVA:
                return home / "bin" / "java"
    return None


@contextmanager
def running_trino(folder: Path, catalogs: Mapping[str, Mapping[str, str]]) -> Iterator[Trino]:
    """A server whose settings and data are below `folder`, with `catalogs`, each by its properties."""
    program, port = java(), free_port()
    assert program is not None
    (folder / "etc" / "catalog").mkdir(parents=True)
    _write(
        folder / "etc" / "config.properties",
        {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(port),
            "discovery.uri": f"http://127.0.0.1:{port}",
            "plugin.dir": str(HOME / "plugin"),
            "query.max-memory": "400MB",
        },
    )
    for name, properties in catalogs.items():
        _write(folder / "etc" / "catalog" / f"{name}.properties", properties)
    command = [
        str(program),
        "-Xmx1500m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "--enable-native-access=ALL-UNNAMED",
        "--add-modules=jdk.incubator.vector",
        "-Dnode.environment=test",
        "-Dnode.id=test",
        f"-Dnode.data-dir={folder / 'data'}",
        f"-Dconfig={folder / 'etc' / 'config.properties'}",
        f"-Dcatalog.config-dir={folder / 'etc' / 'catalog'}",
        "-cp",
        str(HOME / "lib" / "*"),
        "io.trino.server.TrinoServer",
    ]
    log = folder / "trino.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    guard = Guard(process.pid, signal.SIGKILL)
    try:
        trino = Trino(port)
        _wait_until_answering(trino, process, log)
        yield trino
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()
        guard.dismiss()


def _wait_until_answering(trino: Trino, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with suppress(OSError, QueryRefused):
            if trino.query("SELECT 1") == [[1]]:
                return
        said = log.read_text(encoding="utf-8", errors="replace")[-3000:]
        assert process.poll() is None, f"Trino ended with {process.poll()}: {said}"
        assert time.monotonic() < deadline, f"Trino does not answer: {said}"
        time.sleep(0.5)


def _write(path: Path, properties: Mapping[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")


def _fetch(folder: Path) -> None:
    """Puts the server and its plugin for Delta below `folder`. Maven knows where it is."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    artifact = f"io.trino:trino-server:{VERSION}:tar.gz"
    copy = f"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy -Dartifact={artifact}"
    subprocess.run(["mvn", "-B", "-q", *copy.split(), f"-DoutputDirectory={folder}"], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise SystemExit(f"{archive.name} is not the one that is expected: its sha256 is {found}")
    with tarfile.open(archive) as packed:
        # Plugins share files by hard links, so that all of them are unpacked.
        packed.extractall(folder, filter="data")
    archive.unlink()
    (unpacked,) = folder.glob("trino-server-*")
    (unpacked / "lib").rename(folder / "lib")
    (folder / "plugin").mkdir()
    for name in _PLUGINS:
        (unpacked / "plugin" / name).rename(folder / "plugin" / name)
    shutil.rmtree(unpacked)
    (folder / ".done").touch()


if __name__ == "__main__":
    _fetch(Path(sys.argv[1]))
