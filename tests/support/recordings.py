"""The streams of tests/golden, and what the decoder makes of a stream in a readable form."""

import struct
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from sluice.protocol import messages as m
from sluice.protocol.decoder import decode_control
from sluice.protocol.frames import FrameTable, control_positions, relation_oids, stream_xids
from sluice.protocol.tuples import RowColumns, walk_rows

GOLDEN = Path(__file__).parents[1] / "golden"

STREAMS = sorted(GOLDEN.glob("pg*/protocol*.bin"))


def recorded(path: Path) -> list[bytes]:
    content, frames, at = path.read_bytes(), [], 0
    while at < len(content):
        (length,) = struct.unpack_from(">I", content, at)
        frames.append(content[at + 4 : at + 4 + length])
        at += 4 + length
    return frames


def readable(message: m.ControlMessage) -> dict[str, Any]:
    """A control message in the form of the .json files."""
    holder = message.version if isinstance(message, m.Relation) else message
    found: dict[str, Any] = {field.name: getattr(holder, field.name) for field in fields(holder)}
    if isinstance(message, m.Relation):
        found["stream_xid"] = message.stream_xid
        found["columns"] = [
            {field.name: getattr(column, field.name) for field in fields(column)} for column in message.version.columns
        ]
    if isinstance(message, m.Truncate):
        found["relation_oids"] = list(message.relation_oids)
    if isinstance(message, m.LogicalMessage):
        found["content"] = message.content.hex()
    return {"message": type(message).__name__, **found}


def readable_rows(columns: RowColumns, oids: list[int], xids: list[int | None]) -> list[dict[str, Any]]:
    raw = columns.table.raw

    def tuple_of(vectors: Any, row: int) -> list[list[str]]:
        found = []
        for vector in vectors:
            kind, content = (
                chr(vector.kind[row]),
                raw[int(vector.start[row]) : int(vector.start[row]) + int(vector.length[row])],
            )
            found.append([kind] if kind in "nu" else [kind, content.decode() if kind == "t" else content.hex()])
        return found

    rows = []
    for row, (op, old_kind) in enumerate(zip(columns.op.tolist(), columns.old_kind.tolist(), strict=True)):
        old = tuple_of(columns.old, row) if old_kind else None
        new = None if op == ord("D") else tuple_of(columns.new, row)
        rows.append(
            {
                "message": chr(op),
                "oid": oids[row],
                "stream_xid": xids[row],
                "old_kind": chr(old_kind) if old_kind else "",
                "old": old,
                "new": new,
            }
        )
    return rows


def decoded(table: FrameTable) -> list[dict[str, Any]]:
    """The stream as the pipeline takes it: control messages one by one, rows by relation and stream state."""
    found: list[dict[str, Any]] = [{}] * len(table)
    controls, in_stream, widths = set(control_positions(table).tolist()), False, dict[int, int]()
    groups: defaultdict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for index in range(len(table)):
        if index not in controls:
            (oid,) = relation_oids(table, np.array([index]), in_stream=in_stream).tolist()
            groups[oid, widths[oid], in_stream].append(index)
            continue
        message = decode_control(table, index, in_stream=in_stream)
        found[index] = readable(message)
        if isinstance(message, m.Relation):
            widths[message.version.oid] = len(message.version.columns)
        in_stream = isinstance(message, m.StreamStart) or (in_stream and not isinstance(message, m.StreamStop))
    for (oid, width, streamed), indices in groups.items():
        rows = np.array(indices)
        xids: list[int | None] = list(stream_xids(table, rows).tolist()) if streamed else [None] * len(rows)
        for index, row in zip(
            indices,
            readable_rows(walk_rows(table, rows, width, in_stream=streamed), [oid] * len(rows), xids),
            strict=True,
        ):
            found[index] = row
    return found


def rows_of(columns: RowColumns) -> list[list[bytes | None]]:
    raw = columns.table.raw
    assert bytes(columns.op) == b"I" * len(columns)
    assert not columns.old_kind.any()
    assert columns.old is None
    found: list[list[bytes | None]] = []
    for row in range(len(columns)):
        fields = [
            (chr(f.kind[row]), raw[int(f.start[row]) : int(f.start[row]) + int(f.length[row])]) for f in columns.new
        ]
        assert all(kind == "t" or (kind, value) == ("n", b"") for kind, value in fields)
        found.append([value if kind == "t" else None for kind, value in fields])
    return found
