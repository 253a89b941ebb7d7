"""Values that must never be seen outside the data: a secret that every pipeline under test is
given, a row value that every workload writes.

They are of course in the spool, in the lake and in the configuration; what is searched is what
Sluice shows: logs, answers, metrics, pages, crash reports.
"""

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

SECRET = "canary-secret-2f9c71"
ROW = "canary-row-2f9c71"
MARKERS = (SECRET, ROW)

_SHOWN = (".log", ".out", ".err", ".txt", ".html", ".prom")
_CRASHED = ("core", "hs_err")


def in_text(text: str) -> list[str]:
    return [marker for marker in MARKERS if marker in text]


def in_files(directory: Path) -> Iterator[str]:
    """What each log and crash report below `directory` holds that it must not. A server's own log is not ours."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if (path.suffix in _SHOWN or name.startswith(_CRASHED)) and not (
                path.with_suffix("") / "PG_VERSION"
            ).exists():
                content = path.read_bytes()
                yield from (f"{path} holds {marker}" for marker in MARKERS if marker.encode() in content)


def with_password(dsn: str) -> str:
    """`dsn` with the secret as its password, which a server that trusts its clients never asks for."""
    head, at, rest = dsn.partition("@")
    return f"{head}:{SECRET}{at}{rest}"


def in_stored(directory: Path, value: str) -> list[str]:
    """The files below `directory` that hold `value`: as they are, and as Parquet and gzip decode them."""
    return [
        str(path.relative_to(directory))
        for path in sorted(directory.rglob("*"))
        if path.is_file() and any(value.encode() in content for content in _contents(path))
    ]


def _contents(path: Path) -> Iterator[bytes]:
    yield path.read_bytes()
    if path.suffix == ".gz":
        yield gzip.decompress(path.read_bytes())
    if path.suffix == ".parquet":
        file = pq.ParquetFile(path)
        yield repr(file.metadata.metadata).encode()
        for group in range(file.metadata.num_row_groups):
            for column in range(file.metadata.num_columns):
                yield repr(file.metadata.row_group(group).column(column).statistics).encode()
            for column in file.read_row_group(group).columns:
                yield repr(column.to_pylist()).encode()
