"""A third reader of Delta, for tests: log, checkpoints, deletion vectors and column mapping by the protocol alone.

Shares no code with the service, Spark or delta-rs, so that what all readers agree on is in the files. It reads small
tables, refuses what the applier's tables do not have, and asserts what the protocol demands on its way. (Delta
protocol: Action Reconciliation, Checkpoints, Deletion Vectors, Column Mapping.)
"""

import json
import re
import uuid
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_OTHER_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\..+")
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_NAME = "delta.columnMapping.physicalName"
_MAGIC = 1_681_511_377
_READER_FEATURES = frozenset({"columnMapping", "deletionVectors", "timestampNtz"})

Action = dict[str, Any]


@dataclass(frozen=True, slots=True)
class File:
    """One live file: its `add` action, and the positions of the rows that its vector marks as deleted."""

    add: Action
    path: Path
    vector: Path | None
    deleted: frozenset[int]

    @property
    def stats(self) -> Action:
        """Numbers exact: a decimal is one."""
        return dict(json.loads(self.add["stats"], parse_float=Decimal)) if self.add.get("stats") else {}


@dataclass
class State:
    """A table at one version."""

    folder: Path
    version: int
    metadata: Action = field(default_factory=dict)
    protocol: Action = field(default_factory=dict)
    adds: dict[tuple[str, str], Action] = field(default_factory=dict)
    removes: dict[tuple[str, str], Action] = field(default_factory=dict)
    markers: dict[str, int] = field(default_factory=dict)
    domains: dict[str, str] = field(default_factory=dict)

    def take(self, action: Action) -> None:
        for kind, value in action.items():
            if kind == "metaData":
                self.metadata = value
            elif kind == "protocol":
                self.protocol = value
            elif kind == "txn":
                self.markers[value["appId"]] = value["version"]
            elif kind == "domainMetadata":
                self.domains[value["domain"]] = value["configuration"]
            elif kind == "add":
                self.removes.pop(_identity(value), None)
                self.adds[_identity(value)] = value
            elif kind == "remove":
                self.adds.pop(_identity(value), None)
                self.removes[_identity(value)] = value

    @property
    def fields(self) -> list[Action]:
        """The table's columns, in order."""
        return list(json.loads(self.metadata["schemaString"])["fields"])

    @cached_property
    def files(self) -> list[File]:
        """The live files, with their deletion vectors read and checked."""
        assert len({path for path, _ in self.adds}) == len(self.adds), "one file is live twice"
        return [_file(self.folder, add) for add in self.adds.values()]

    def rows(self) -> list[dict[str, Any]]:
        """Every live row by logical column names. (Ids are checked by `table_audit.check_files`.)"""
        found: list[dict[str, Any]] = []
        for file in self.files:
            table = self.read(file)
            live = np.setdiff1d(np.arange(len(table)), np.fromiter(file.deleted, np.int64, len(file.deleted)))
            found += table.take(pa.array(live)).to_pylist()
        return found

    def tracked_rows(self) -> list[tuple[int, int, dict[str, Any]]]:
        """(id, version that made it, row) of every live row of a table that tracks them."""
        properties = self.metadata["configuration"]
        names = [f"delta.rowTracking.materializedRow{one}ColumnName" for one in ("Id", "CommitVersion")]
        found = []
        for file in self.files:
            stored, rows = pq.ParquetFile(file.path).read(), self.read(file).to_pylist()
            hidden = []
            for name in names:
                there = properties[name] in stored.column_names
                hidden.append(stored[properties[name]].to_pylist() if there else [None] * len(rows))
            for place, row in enumerate(rows):
                if place not in file.deleted:
                    own, version = (column[place] for column in hidden)
                    found.append(
                        (
                            file.add["baseRowId"] + place if own is None else own,
                            file.add["defaultRowCommitVersion"] if version is None else version,
                            row,
                        )
                    )
        return found

    def read(self, file: File) -> pa.Table:
        """All rows of one file, deleted ones included, by logical names and in the file's order."""
        table = pq.ParquetFile(file.path).read()
        arrays = [_column(table, column) for column in self.fields]
        if not arrays:
            return table.select([])
        return pa.table(arrays, names=[column["name"] for column in self.fields])


class DeltaFolder:
    """The Delta table in a local folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "_delta_log"

    def versions(self) -> list[int]:
        """Those whose commit is still in the log, ascending."""
        return sorted(int(match[1]) for file in self.log.iterdir() if (match := _COMMIT.fullmatch(file.name)))

    def commit(self, version: int) -> list[Action]:
        """The actions of one commit."""
        text = (self.log / f"{version:020d}.json").read_bytes()
        return [json.loads(line) for line in text.splitlines() if line.strip()]

    def checksum(self, version: int) -> Action | None:
        """What the checksum file of `version` says, None when there is none."""
        file = self.log / f"{version:020d}.crc"
        return dict(json.loads(file.read_bytes())) if file.exists() else None

    def checkpoints(self) -> list[int]:
        """The versions that have a checkpoint, ascending."""
        names = [file.name for file in self.log.iterdir()]
        other = [name for name in names if _OTHER_CHECKPOINT.fullmatch(name) and not _CHECKPOINT.fullmatch(name)]
        assert not other, f"checkpoints of a kind that is not read here: {other}"
        return sorted(int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name)))

    def state(self, version: int | None = None, *, checkpoints: bool = True) -> State:
        """The table at `version` (None: the newest), from the newest checkpoint or from commits alone."""
        commits = self.versions()
        wanted = commits[-1] if version is None else version
        state = State(self.folder, wanted)
        start = max((found for found in self.checkpoints() if found <= wanted), default=-1) if checkpoints else -1
        if start >= 0:
            for action in _checkpointed(self.log / f"{start:020d}.checkpoint.parquet"):
                state.take(action)
        numbers = [found for found in commits if start < found <= wanted]
        assert numbers == list(range(start + 1, wanted + 1)), f"commits are missing between {start} and {wanted}"
        for number in numbers:
            for action in self.commit(number):
                state.take(action)
        strange = set(state.protocol.get("readerFeatures") or ()) - _READER_FEATURES
        assert not strange, f"not read here: {strange}"
        assert not state.metadata["partitionColumns"], "partitions are not read here"
        return state


def _identity(action: Action) -> tuple[str, str]:
    """A logical file: its path and its vector."""
    vector = action.get("deletionVector") or {}
    return action["path"], f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}" if vector else ""


def _checkpointed(file: Path) -> Iterator[Action]:
    for row in pq.ParquetFile(file).read().to_pylist(maps_as_pydicts="strict"):
        yield {name: _without_none(value) for name, value in row.items() if value is not None}


def _without_none(value: Any) -> Any:
    """A commit leaves out what a checkpoint calls null."""
    if not isinstance(value, dict):
        return value
    return {name: _without_none(item) for name, item in value.items() if item is not None}


def _file(folder: Path, add: Action) -> File:
    path = _place(folder, add["path"])
    assert path.stat().st_size == add["size"], f"{path.name} has another size than the log says"
    vector = add.get("deletionVector")
    if not vector:
        return File(add, path, None, frozenset())
    place, deleted = read_vector(folder, vector)
    rows = pq.ParquetFile(path).metadata.num_rows
    assert not deleted or max(deleted) < rows, f"the vector of {path.name} marks rows past its end"
    return File(add, path, place, deleted)


def _place(folder: Path, path: str) -> Path:
    found = unquote(path)
    if found.startswith("file:"):
        return Path("/" + found.removeprefix("file:").lstrip("/"))
    return folder / found


def read_vector(folder: Path, descriptor: Mapping[str, Any]) -> tuple[Path | None, frozenset[int]]:
    """The file of a deletion vector (None: inline), and the positions it marks, everything about them checked."""
    kind, text = descriptor["storageType"], descriptor["pathOrInlineDv"]
    place: Path | None = None
    if kind == "i":
        data = _z85(text)[: descriptor["sizeInBytes"]]
    else:
        place = _place(folder, text) if kind == "p" else _relative(folder, text)
        content = place.read_bytes()
        assert content[0] == 1, f"{place.name} is of version {content[0]}"
        at = descriptor.get("offset") or 0
        size = int.from_bytes(content[at : at + 4], "big")
        assert size == descriptor["sizeInBytes"], f"{place.name} has another size than the log says"
        data = content[at + 4 : at + 4 + size]
        stated = int.from_bytes(content[at + 4 + size : at + 8 + size], "big")
        assert zlib.crc32(data) == stated, f"the vector in {place.name} is damaged"
    positions = _bitmap_array(data)
    assert len(positions) == len(set(positions)) == descriptor["cardinality"], "a vector has another cardinality"
    return place, frozenset(positions)


def _relative(folder: Path, text: str) -> Path:
    prefix, encoded = text[:-20], text[-20:]
    name = f"deletion_vector_{uuid.UUID(bytes=_z85(encoded))}.bin"
    return folder / prefix / name if prefix else folder / name


def _z85(text: str) -> bytes:
    found = bytearray()
    for start in range(0, len(text), 5):
        number = 0
        for letter in text[start : start + 5]:
            number = number * 85 + _Z85.index(letter)
        found += number.to_bytes(4, "big")
    return bytes(found)


def _bitmap_array(data: bytes) -> list[int]:
    """RoaringBitmapArray in its portable form: 64-bit positions as 32-bit bitmaps by their upper half."""
    assert int.from_bytes(data[:4], "little") == _MAGIC, "not a bitmap of the portable form"
    count, at = int.from_bytes(data[4:12], "little"), 12
    positions: list[int] = []
    previous = -1
    for _ in range(count):
        upper = int.from_bytes(data[at : at + 4], "little")
        assert upper > previous, "the bitmaps of a vector are not in order"
        previous = upper
        lower, at = _bitmap(data, at + 4)
        positions += [(upper << 32) | value for value in lower]
    assert at == len(data), f"{len(data) - at} bytes behind the bitmaps of a vector"
    return positions


def _bitmap(data: bytes, at: int) -> tuple[list[int], int]:
    """One 32-bit Roaring bitmap at `at`, and where it ends. (Roaring: format specification.)"""
    cookie = int.from_bytes(data[at : at + 4], "little")
    runs = cookie & 0xFFFF == 12_347
    assert runs or cookie == 12_346, f"a bitmap begins with {cookie}"
    at += 4
    if runs:
        count = (cookie >> 16) + 1
        flags = np.unpackbits(np.frombuffer(data, np.uint8, (count + 7) // 8, at), bitorder="little")[:count]
        at += (count + 7) // 8
    else:
        count = int.from_bytes(data[at : at + 4], "little")
        flags = np.zeros(count, np.uint8)
        at += 4
    heads = np.frombuffer(data, "<u2", 2 * count, at).reshape(count, 2).astype(np.int64)
    at += 4 * count
    assert bool(np.all(np.diff(heads[:, 0]) > 0)), "the containers of a bitmap are not in order"
    offsets: list[int] | None = None
    base = at - 4 * count - (4 + (count + 7) // 8 if runs else 8)
    if not runs or count >= 4:
        offsets = np.frombuffer(data, "<u4", count, at).tolist()
        at += 4 * count
    values: list[int] = []
    for place, (key, less) in enumerate(heads.tolist()):
        assert offsets is None or base + offsets[place] == at, "a container is not where its bitmap says"
        found, at = _container(data, at, less + 1, is_run=bool(flags[place]))
        assert len(found) == less + 1, "a container has another cardinality than its bitmap says"
        values += (found + (key << 16)).tolist()
    return values, at


def _container(data: bytes, at: int, cardinality: int, *, is_run: bool) -> tuple[Any, int]:
    if is_run:
        count = int.from_bytes(data[at : at + 2], "little")
        pairs = np.frombuffer(data, "<u2", 2 * count, at + 2).reshape(count, 2).astype(np.int64)
        found = [np.arange(start, start + length + 1) for start, length in pairs.tolist()]
        return np.concatenate(found) if found else np.zeros(0, np.int64), at + 2 + 4 * count
    if cardinality <= 4096:
        return np.frombuffer(data, "<u2", cardinality, at).astype(np.int64), at + 2 * cardinality
    bits = np.unpackbits(np.frombuffer(data, np.uint8, 8192, at), bitorder="little")
    return np.flatnonzero(bits), at + 8192


def _column(table: pa.Table, column: Action) -> pa.Array:
    """The column of `table` that the metadata calls `column`, NULL for a file that is older than the column."""
    place = _found(list(table.schema), column)
    if place is None:
        assert column["nullable"], f"{column['name']} is missing in a file"
        return pa.nulls(len(table), _null_type(column["type"]))
    return _logical(table.column(place).combine_chunks(), column["type"])


def _found(fields: list[pa.Field], column: Action) -> int | None:
    places = [place for place, one in enumerate(fields) if one.name == column["metadata"][_NAME]]
    assert len(places) <= 1, f"{column['name']} is {len(places)} times in a file"
    return places[0] if places else None


def field_id(one: pa.Field) -> int | None:
    """The Parquet field id of an Arrow field that was read from a file."""
    found = (one.metadata or {}).get(b"PARQUET:field_id")
    return None if found is None else int(found)


def _logical(array: Any, kind: Any) -> pa.Array:
    """`array` with the fields of structs under their logical names."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if not isinstance(kind, dict) or kind["type"] != "struct":
        return array
    inner = []
    for column in kind["fields"]:
        place = _found([array.type.field(number) for number in range(array.type.num_fields)], column)
        assert place is not None, f"{column['name']} is missing in a struct"
        inner.append(_logical(array.field(place), column["type"]))
    names = [column["name"] for column in kind["fields"]]
    return pa.StructArray.from_arrays(inner, names=names, mask=array.is_null()) if inner else array


def _null_type(kind: Any) -> pa.DataType:
    return pa.null() if isinstance(kind, str) or kind["type"] != "struct" else pa.struct([])
