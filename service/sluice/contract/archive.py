"""A sealed archive: a run of manifest entries in one object, `archive/<last number>.jsonl.gz`,
create-only.

It holds the very bytes of `ENTRIES` entries, so that the chain is followed through it link by link
as through single objects. Lines of JSON, compressed: first the head with the hash of every entry,
then the pipeline's state before the first entry, then the entries. The runs have fixed bounds: the
number of an entry says in which archive it is, and nobody needs a listing to find it.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sluice.contract import codec, keys
from sluice.contract.entries import digest
from sluice.errors import ManifestCorrupt

ENTRIES = 500
"""At one entry every two seconds an archive is a quarter of an hour, and some 200 KB at 100
transactions a second. A reader in the middle of one reads all of it.
"""
FORMAT_VERSION = 1
_LEVEL = 6


def last_of(seq: int) -> int:
    """The number of the last entry of the archive that holds entry `seq`."""
    return -(-seq // ENTRIES) * ENTRIES


def first_of(seq: int) -> int:
    """The number of the first entry of that archive."""
    return last_of(seq) - ENTRIES + 1


def key_of(seq: int) -> str:
    """Where the archive with entry `seq` is, once it is sealed."""
    return keys.archive(last_of(seq))


@dataclass(frozen=True, slots=True)
class Head:
    """What an archive says of itself. `previous_sha256` is the hash of the entry before the first,
    `entry_sha256` has that of each entry in order.
    """

    first_seq: int
    last_seq: int
    previous_sha256: str
    state_sha256: str
    entry_sha256: tuple[str, ...]


class Sealing:
    """An archive that is being made: entries are added in order and kept compressed."""

    def __init__(self, *, first_seq: int, previous_sha256: str, state: dict[str, Any]) -> None:
        """`state` is that of the pipeline before the first entry."""
        self._first_seq = first_seq
        self._previous_sha256 = previous_sha256
        self._hashes: list[str] = []
        self._buffer = io.BytesIO()
        self._file = _compressed(self._buffer)
        content = codec.encode(state)
        self._state_sha256 = digest(content)
        self._write(content)

    def add(self, stored: bytes, sha256: str) -> None:
        """The next entry, as its object has it."""
        self._hashes.append(sha256)
        self._write(stored)

    def sealed(self) -> bytes:
        """The object to store. Nothing can be added afterwards."""
        self._file.close()
        head = Head(
            self._first_seq,
            self._first_seq + len(self._hashes) - 1,
            self._previous_sha256,
            self._state_sha256,
            tuple(self._hashes),
        )
        front = io.BytesIO()
        with _compressed(front) as file:
            file.write(codec.encode_versioned(head, FORMAT_VERSION) + b"\n")
        return front.getvalue() + self._buffer.getvalue()

    def _write(self, line: bytes) -> None:
        if b"\n" in line:
            raise ManifestCorrupt("a manifest entry has a line break, which Sluice never writes")
        self._file.write(line + b"\n")


class Archive:
    """A sealed archive that was read. What it gives was compared with its head."""

    def __init__(self, data: bytes, *, key: str) -> None:
        """Raises ManifestCorrupt and FormatTooNew, which name `key`."""
        self._data = data
        self._key = key
        self.head: Head = codec.decode_versioned(
            Head, next(self._lines(), b""), version=FORMAT_VERSION, what=f"the head of {key}"
        )
        head = self.head
        if (
            key != keys.archive(head.last_seq)
            or not 0 < head.first_seq <= head.last_seq
            or len(head.entry_sha256) != head.last_seq - head.first_seq + 1
        ):
            raise ManifestCorrupt(f"{key} names entries {head.first_seq} to {head.last_seq}", hint=_HINT)

    def state(self) -> dict[str, Any]:
        """The pipeline's state before the first entry. Raises ManifestCorrupt."""
        lines = self._lines()
        next(lines)
        content = next(lines, b"")
        if digest(content) != self.head.state_sha256:
            raise ManifestCorrupt(f"the state in {self._key} is damaged", hint=_HINT)
        return codec.parse(content, self._key)

    def stored(self, *, after_seq: int = 0) -> Iterator[tuple[int, bytes, str]]:
        """Number, bytes and hash of each entry after `after_seq`, in order. Raises ManifestCorrupt."""
        lines = self._lines()
        next(lines)
        next(lines, None)
        for seq, sha256 in enumerate(self.head.entry_sha256, self.head.first_seq):
            line = next(lines, b"")
            if seq <= after_seq:
                continue
            if digest(line) != sha256:
                raise ManifestCorrupt(f"manifest entry {seq} in {self._key} is damaged", hint=_HINT)
            yield seq, line, sha256
        # Reading to the end compares the check sum of the whole, the state included.
        if next(lines, None) is not None:
            raise ManifestCorrupt(f"{self._key} has more than its head says", hint=_HINT)

    def _lines(self) -> Iterator[bytes]:
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(self._data)) as file:
                for line in file:
                    yield line.removesuffix(b"\n")
        except (OSError, EOFError, zlib.error) as error:
            raise ManifestCorrupt(f"{self._key} cannot be decompressed", hint=_HINT) from error


_HINT = "it was replaced or damaged; restore it from a copy of the bucket"


def _compressed(to: io.BytesIO) -> gzip.GzipFile:
    # No time in it: equal entries give equal bytes.
    return gzip.GzipFile(fileobj=to, mode="wb", compresslevel=_LEVEL, mtime=0, filename="")
