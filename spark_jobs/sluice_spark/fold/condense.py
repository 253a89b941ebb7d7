"""Leaves out changes that later ones replace, before anything is folded, so that a row that changes
very often takes no more memory than its last state.

Owns that the remaining changes have the effect of all of them, together with any changes before and
after them that this module did not see, of other keys and of the same one. Nothing may be between
changes that become one, so it waits until every change in front of them has come. Where this
is not certain (a key that a row moved to or from without all its values, whole old rows that do not
follow from one another) every change stays. Pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice_spark.fold.fold import Keys, in_order, latest, operations, row_numbers, special_of, unchanged_flags
from sluice_spark.fold.partition import Cutter, removed_and_arrived
from sluice_spark.fold.row_identity import Claims, Numbers, whole

Versioned = tuple[pa.Table, TableSchema]
_OF_ONE_ROW = 2
"""Changes that may stay of one row: a removal, and what came after it."""


Place = tuple[int, int]
"""The position of a change: commit LSN and ordinal."""
START, END = (-1, -1), ((1 << 63) - 1, (1 << 63) - 1)


class InTurn(NamedTuple):
    """Changes of one version. No table that comes later has one in front of `until`, and none of this one is in front
    of what the table before it said.
    """

    rows: pa.Table
    version: TableSchema
    until: Place


def condensed(changes: Iterable[InTurn], cutter: Cutter, *, at_once: int) -> Iterator[Versioned]:
    """`changes`, none of them a TRUNCATE, without those that later ones replace; about `at_once` bytes are looked at
    together.
    """
    return (one for one in _condensed(changes, cutter, at_once=at_once) if len(one[0]))


def _condensed(changes: Iterable[InTurn], cutter: Cutter, *, at_once: int) -> Iterator[Versioned]:
    waiting: Versioned | None = None
    kept_through, before = START, START
    """Changes up to there stay as they are: one of them has left, and others come between."""
    for rows, version, until in changes:
        if waiting is not None and waiting[1] is not version:
            closed, left = _parted(waiting[0], before)
            yield _fewer(closed, waiting[1], cutter), waiting[1]
            yield left, waiting[1]
            kept_through, waiting = max(kept_through, _last_place(left)), None
        if kept_through > START:
            early, rows = _parted(rows, (kept_through[0], kept_through[1] + 1))  # noqa: PLW2901
            yield early, version
        before = until
        together = pa.concat_tables([waiting[0], rows]) if waiting is not None else rows
        if together.nbytes > at_once:
            closed, left = _parted(together, until)
            closed = _fewer(closed, version, cutter)
            stays = closed.nbytes <= at_once or len(closed) <= _OF_ONE_ROW
            if left.nbytes > at_once or not stays:
                yield closed, version
                closed = closed.slice(0, 0)
            if left.nbytes > at_once:
                yield left, version
                kept_through, left = max(kept_through, _last_place(left)), left.slice(0, 0)
            together = pa.concat_tables([closed, left])
        waiting = together, version
    if waiting is not None:
        yield _fewer(*waiting, cutter), waiting[1]


def first_place(rows: pa.Table) -> Place:
    """Where the first of `rows` is, END without any."""
    if not len(rows):
        return END
    lsn = pc.min(rows[envelope.LSN])
    return lsn.as_py(), pc.min(rows[envelope.ORDINAL].filter(pc.equal(rows[envelope.LSN], lsn))).as_py()


def _last_place(rows: pa.Table) -> Place:
    if not len(rows):
        return START
    lsn = pc.max(rows[envelope.LSN])
    return lsn.as_py(), pc.max(rows[envelope.ORDINAL].filter(pc.equal(rows[envelope.LSN], lsn))).as_py()


def _parted(rows: pa.Table, place: Place) -> tuple[pa.Table, pa.Table]:
    """Those of `rows` in front of `place`, and the others."""
    later = _later(rows, place[0], place[1] - 1)
    return rows.filter(pc.invert(later)), rows.filter(later)


def _fewer(rows: pa.Table, schema: TableSchema, cutter: Cutter) -> pa.Table:
    rows = in_order(cutter.moved_apart(rows))
    if not len(rows):
        return rows
    if not cutter.columns or cutter.bits:
        return _without_pairs(in_order(_updates_apart(rows)), schema)
    keys = Keys(rows, schema, operations(rows))
    if cutter.each_transaction:
        keys.in_transactions(rows[envelope.LSN].to_numpy())
    return _of_whole_rows(rows, schema, keys) if schema.replica_identity == "f" else _of_keys(rows, schema, keys)


def _updates_apart(rows: pa.Table) -> pa.Table:
    """Each update as a removal and an arrival, as the cutter does it for those that move."""
    update = pc.equal(rows[envelope.OP], envelope.OP_UPDATE)
    changed = rows.filter(update)
    return pa.concat_tables([rows.filter(pc.invert(update)), *removed_and_arrived(changed)]) if len(changed) else rows


def _without_pairs(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Of a table without a key: arrivals and removals of equal rows cancel out, in either order."""
    after, before = row_numbers(rows, schema)
    adds = pc.equal(rows[envelope.OP], envelope.OP_INSERT).to_numpy()
    number = np.where(adds, after, before)
    size = int(number.max(initial=-1)) + 1
    net = np.bincount(number[adds], minlength=size) - np.bincount(number[~adds], minlength=size)
    stays = np.zeros(len(rows), dtype=bool)
    for sign, chosen in ((1, np.flatnonzero(adds)), (-1, np.flatnonzero(~adds))):
        order = chosen[np.argsort(number[chosen], kind="stable")]
        # How many of the same row come before each, in its own group.
        place = np.arange(len(order)) - np.searchsorted(number[order], number[order])
        stays[order] = place < np.maximum(sign * net, 0)[number[order]]
    return rows.filter(pa.array(stays))


@dataclass(frozen=True, slots=True)
class _Runs:
    """The changes of each key, side by side and in order: `order` are positions, `starts` and
    `ends` (inclusive) the places of each run in it.
    """

    order: Numbers
    starts: Numbers
    ends: Numbers

    @staticmethod
    def of(numbers: Numbers, chosen: Numbers) -> "_Runs":
        order = chosen[np.argsort(numbers[chosen], kind="stable")]
        cuts = np.flatnonzero(np.diff(numbers[order]))
        return _Runs(
            order,
            np.concatenate([[0], cuts + 1]).astype(np.int64),
            np.concatenate([cuts, [len(order) - 1]]).astype(np.int64),
        )


def _of_whole_rows(rows: pa.Table, schema: TableSchema, keys: Keys) -> pa.Table:
    """Of a table that sends whole old rows: a run in which each old row is the new row before it is
    one change from its first old row to its last new one.
    """
    operation = keys.operation
    after, before = row_numbers(rows, schema)
    after, before = np.where(operation == ord("d"), -1, after), np.where(operation == ord("i"), -1, before)
    runs = _Runs.of(keys.acts_on, np.arange(len(rows)))
    follows = np.ones(len(rows), dtype=bool)
    follows[1:] = before[runs.order[1:]] == after[runs.order[:-1]]
    follows[runs.starts] = True
    linear = np.logical_and.reduceat(follows, runs.starts)
    if bool(np.any(keys.acts_on != np.where(operation == ord("d"), keys.acts_on, keys.now))):
        # A move that cannot be separated: no key is safe.
        return rows
    first, last = runs.order[runs.starts[linear]], runs.order[runs.ends[linear]]
    born, dead = operation[first] == ord("i"), operation[last] == ord("d")
    lasting = ~(born & dead)
    first, last, born, dead = first[lasting], last[lasting], born[lasting], dead[lasting]
    made = rows.take(pa.array(last))
    op = np.where(dead, "d", np.where(born, "i", "u"))
    made = _with(made, envelope.OP, pa.array(op.tolist(), made.schema.field(envelope.OP).type))
    sources = pa.array(first, mask=born)
    for name in (envelope.OLD, envelope.OLD_SPECIAL):
        made = _with(made, name, whole(rows[name]).take(sources))
    return in_order(pa.concat_tables([_rest(rows, runs, ~linear), made]))


def _of_keys(rows: pa.Table, schema: TableSchema, keys: Keys) -> pa.Table:
    """Of a table whose old rows are keys: the last change of a key, its unsent values from the last
    change that has them, and a removal before it.
    """
    operation = keys.operation
    alone = np.flatnonzero(~keys.coupled(whole_rows=False))
    if not len(alone):
        return rows
    flags = unchanged_flags(rows, schema)
    number = keys.acts_on
    runs = _Runs.of(number, alone)
    of = number[runs.order[runs.starts]]
    first, last = runs.order[runs.starts], runs.order[runs.ends]
    inserted, removed = (
        latest(keys.count, number[alone[hit]], alone[hit])[of]
        for hit in (operation[alone] == ord("i"), operation[alone] == ord("d"))
    )
    dead, born = operation[last] == ord("d"), operation[first] == ord("i")
    sources = {}
    doubtful = ~dead & (removed > inserted)
    for attnum, flag in flags.items():
        sent = alone[~flag[alone] & (operation[alone] != ord("d"))]
        sources[attnum] = latest(keys.count, number[sent], sent)[of]
        doubtful |= ~dead & (inserted > sources[attnum])
    sure = ~doubtful
    alive = sure & ~dead
    kept = [last[sure & dead], inserted[sure & dead & born & (inserted >= 0)], removed[alive & ~born & (removed >= 0)]]
    made = _made(
        rows, schema, last[alive], inserted[alive] >= 0, {attnum: source[alive] for attnum, source in sources.items()}
    )
    coupled = rows.filter(pa.array(~np.isin(np.arange(len(rows)), alone)))
    return in_order(
        pa.concat_tables([coupled, _rest(rows, runs, doubtful), rows.take(pa.array(np.concatenate(kept))), made])
    )


def _made(
    rows: pa.Table, schema: TableSchema, last: Numbers, inserted: Claims, sources: dict[int, Numbers]
) -> pa.Table:
    """The changes at `last`, with the values that they lack."""
    made = rows.take(pa.array(last))
    for column in schema.columns:
        if column.attnum in sources:
            source = sources[column.attnum]
            made = _with(made, column.name, whole(rows[column.name]).take(pa.array(source, mask=source < 0)))
    lacking = (
        [[attnum for attnum, source in sources.items() if source[place] < 0] or None for place in range(len(last))]
        if sources
        else [None] * len(last)
    )
    made = _with(made, envelope.UNCHANGED, pa.array(lacking, made.schema.field(envelope.UNCHANGED).type))
    made = _with(made, envelope.SPECIAL, special_of(rows, schema.columns, last, sources))
    made = _with(
        made, envelope.OP, pa.array(np.where(inserted, "i", "u").tolist(), made.schema.field(envelope.OP).type)
    )
    for name in (envelope.OLD, envelope.OLD_SPECIAL):
        if name in made.column_names:
            made = _with(made, name, pa.nulls(len(last), made.schema.field(name).type))
    return made


def _rest(rows: pa.Table, runs: _Runs, chosen: Claims) -> pa.Table:
    """All changes of the runs that are `chosen`."""
    return rows.take(pa.array(runs.order[np.repeat(chosen, runs.ends - runs.starts + 1)]))


def _with(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    place = rows.column_names.index(name)
    return rows.set_column(place, rows.schema.field(name), values.cast(rows.schema.field(name).type))


def behind(changes: Iterable[InTurn], truncates: Iterable[Versioned]) -> Iterator[InTurn]:
    """`changes` that came after the last of `truncates`: the others are replaced by it."""
    last = max((_last_place(rows) for rows, _ in truncates), default=START)
    for rows, version, until in changes:
        yield InTurn(rows.filter(_later(rows, *last)), version, until)


def _later(rows: pa.Table, lsn: int, ordinal: int) -> pa.ChunkedArray:
    same = pc.and_(pc.equal(rows[envelope.LSN], lsn), pc.greater(rows[envelope.ORDINAL], ordinal))
    return pc.or_(pc.greater(rows[envelope.LSN], lsn), same)
