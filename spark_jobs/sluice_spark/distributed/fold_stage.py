"""Second stage on the executors: one part of a window is folded and its new rows become data files.

Runs in executors' Python. Owns that a task holds about `limit` bytes of changes: a part that is larger
goes over its executor's local disk, as a large window does on one machine, and becomes several
portions. Rows that need something of the row that they replace (a value that was not sent, its id) wait in
the scratch of the spool, with the keys that are to be looked for. Every attempt writes files with new names;
those of an attempt that does not win are orphans.
"""

import io
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice import faults
from sluice.contract.schema import TableSchema
from sluice.errors import ApplyError
from sluice_spark.distributed.partition_stage import ROWS, versioned
from sluice_spark.distributed.stages import COUNT, RESULT, Piece, require
from sluice_spark.distributed.task import WindowTask
from sluice_spark.fold.fold import DELETED, KEEP, KEY, KEY_SPECIAL, MATCH, Folded
from sluice_spark.fold.partition import PARTS, Cutter, weight
from sluice_spark.fold.row_identity import Claims
from sluice_spark.fold.spill import Versioned, portions
from sluice_spark.lake.direct.data_files import Written
from sluice_spark.lake.direct.followed_rows import inserted
from sluice_spark.lake.layout import TableLayout
from sluice_spark.lake.plan import MergePlan

PORTION, ROW, GONE, WANTS = "_sluice_portion", "_sluice_row_number", "_sluice_gone", "_sluice_wants"
PORTIONS_A_PART = 1 << 32


@dataclass(frozen=True, slots=True)
class FoldTask:
    """How the parts of a window are folded. `cutter` is the one that made them."""

    window: WindowTask
    cutter: Cutter


@dataclass(frozen=True, slots=True)
class Portion:
    """A portion that was folded: `source` net changes, of which those in `written` are in data files,
    `waiting` in the scratch, and `keys` are in the scratch to be looked for.

    `number` is unique in the window. `plan` is what the commit must do (None: nothing), `replaces`
    says that nothing of the lake's rows remains.
    """

    number: int
    source: int
    written: Written
    plan: MergePlan | None
    replaces: bool
    keys: str = ""
    key_count: int = 0
    waiting: str = ""
    waiting_count: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """A part that was folded, and how many pieces of it had arrived."""

    number: int
    pieces: int
    portions: tuple[Portion, ...]


@dataclass(slots=True)
class _Arrived:
    part: int = 0
    pieces: int = 0
    counts: list[Piece] = field(default_factory=list)


def fold_part(task: FoldTask, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The account of the part whose pieces these are; accounts of the stage before pass."""
    window, arrived, found = task.window, _Arrived(), []
    for place, portion in enumerate(_portions(_changes(pieces, window, arrived), task)):
        rows = window.united(portion)
        del portion
        folded = window.kind.net(rows, window.schema, keyed=True, removals_sent=window.removals_sent)
        assert isinstance(folded, Folded)
        found.append(_stored(folded, window, arrived.part * PORTIONS_A_PART + place))
        faults.point("apply.distributed.folded")
    yield from arrived.counts
    if arrived.pieces:
        yield Piece.of(RESULT, Part(arrived.part, arrived.pieces, tuple(found)))


def portions_of(pieces: Iterator[Piece], task: FoldTask) -> Iterator[list[Versioned]]:
    """The changes of one part in portions to fold one after the other."""
    return _portions(_changes(pieces, task.window, _Arrived()), task)


def _changes(pieces: Iterator[Piece], window: WindowTask, arrived: _Arrived) -> Iterator[Versioned]:
    for piece in pieces:
        if piece.kind == COUNT:
            arrived.counts.append(piece)
        elif piece.kind == ROWS:
            if arrived.pieces and piece.part != arrived.part:
                raise ApplyError("two parts of a window came to one task")
            arrived.part = piece.part
            arrived.pieces += 1
            yield versioned(piece, window)


def _portions(changes: Iterator[Versioned], task: FoldTask) -> Iterator[list[Versioned]]:
    taken: list[Versioned] = []
    size = 0
    for rows, version in changes:
        taken.append((rows, version))
        size += weight(rows, version)
        if size > task.window.limit:
            cutter = replace(task.cutter, level=0, parts=PARTS)
            yield from portions(chain(taken, changes), cutter, limit=task.window.limit)
            return
    if taken:
        yield taken


def _stored(folded: Folded, window: WindowTask, number: int) -> Portion:
    rows = folded.rows
    if folded.replaces:
        return Portion(number, len(rows), window.written([rows]), None, replaces=True)
    require(holds=folded.sweep is None, what="a TRUNCATE came to the executors")
    if not len(rows):
        return Portion(number, 0, Written(), None, replaces=False)
    metadata = window.kind.metadata(window.schema, wanted=window.metadata)
    plan = MergePlan.of(folded, window.schema, metadata=metadata)
    wants = wanting(rows, plan, window.layout)
    settled = plan.settlement is not None
    # What is settled goes, and other rows come: no row replaces another one.
    gone = np.ones(len(rows), dtype=bool) if settled else rows[DELETED].to_numpy()
    ready = ~gone & ~wants
    written = Written()
    if not settled:
        written = window.written([inserted(rows if ready.all() else rows.filter(pa.array(ready)), window.layout)])
    match = rows[MATCH].to_numpy()
    return Portion(
        number,
        len(rows),
        written,
        plan,
        replaces=False,
        keys=_keys(rows, (match, gone, wants), window, number),
        key_count=int(match.sum()),
        waiting=_waiting(rows, wants, window, number),
        waiting_count=int(wants.sum()),
    )


def keeping(rows: pa.Table, plan: MergePlan) -> Claims:
    """Which of `rows` keep a value of the lake."""
    flags = [rows[f"{KEEP}{column.attnum}"].to_numpy() for column in plan.kept]
    return np.logical_or.reduce(flags) if flags else np.zeros(len(rows), dtype=bool)


def wanting(rows: pa.Table, plan: MergePlan, layout: TableLayout) -> Claims:
    """Which of `rows` cannot be written before it is known which row of the lake they replace; all that are settled."""
    if plan.settlement is not None:
        return np.ones(len(rows), dtype=bool)
    wants = keeping(rows, plan)
    if layout.follows_rows:
        wants = wants | (rows[MATCH].to_numpy() & ~rows[DELETED].to_numpy())
    return wants


def key_columns(schema: TableSchema) -> list[tuple[str, str]]:
    """The columns (name, Spark type) of the keys in the scratch."""
    columns: list[tuple[str, str]] = []
    for place, column in enumerate(schema.key_columns):
        columns.append((f"{KEY}{place}", column.lake.sql))
        if column.lake.special:
            columns.append((f"{KEY_SPECIAL}{place}", "string"))
    return [*columns, (PORTION, "bigint"), (ROW, "bigint"), (GONE, "boolean"), (WANTS, "boolean")]


def _keys(rows: pa.Table, claims: tuple[Claims, Claims, Claims], window: WindowTask, number: int) -> str:
    match, gone, wants = claims
    if not match.any():
        return ""
    names = [name for name, _ in key_columns(window.schema) if name in rows.column_names]
    table = rows.select(names)
    table = table.append_column(PORTION, pa.array(np.full(len(rows), number)))
    table = table.append_column(ROW, pa.array(np.arange(len(rows))))
    table = table.append_column(GONE, pa.array(gone)).append_column(WANTS, pa.array(wants))
    sink = io.BytesIO()
    table = table if match.all() else table.filter(pa.array(match))
    pq.write_table(table, sink, compression="lz4", use_dictionary=False, write_statistics=False)
    return _put(window, sink.getvalue(), f"{number}.parquet")


def _waiting(rows: pa.Table, wants: Claims, window: WindowTask, number: int) -> str:
    if not wants.any():
        return ""
    chosen = rows.append_column(ROW, pa.array(np.arange(len(rows)))).filter(pa.array(wants))
    return _put(window, Piece.of_table("", chosen, part=0).payload, f"{number}.arrow")


def _put(window: WindowTask, content: bytes, name: str) -> str:
    # No other attempt at the same task has this name.
    key = f"{window.scratch}{uuid.uuid4().hex}-{name}"
    window.spool.open().put(key, content)
    return key


def waiting_rows(window: WindowTask, portion: Portion) -> pa.Table:
    """The rows of `portion` that keep a value of the lake."""
    table = Piece("", 0, window.spool.open().get(portion.waiting)).table
    if len(table) != portion.waiting_count:
        raise ApplyError("rows in the scratch of the spool are not those that were put there")
    return table
