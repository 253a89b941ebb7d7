"""From a finished draft to runs: row messages grouped by relation version and by transaction body,
with array steps only.

Invariant: every row message of the batch is in exactly one run, unless its transaction was dropped.
Must not look at values. Pure.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sluice.errors import ProtocolViolation
from sluice.ingest.assemble.assembly import MessageRun, RowRun, TruncateRun
from sluice.ingest.assemble.fragments import DROPPED_LSN, NO_BODY, NO_FRAGMENT, Draft, Fragments
from sluice.protocol.frames import FrameTable, control_positions, relation_oids, stream_xids
from sluice.protocol.messages import LogicalMessage, RelationVersion

_DROPPED = NO_BODY - 1
"""Stands for the body of rows that go into no run."""


def row_runs(
    table: FrameTable, draft: Draft, fragments: Fragments, shapes: dict[int, int], versions: list[RelationVersion]
) -> list[RowRun]:
    """The batch's rows. `shapes` has the relation versions in force at its beginning and is changed;
    raises ProtocolViolation for a row of a relation that was not announced.
    """
    if not draft.span_rows:
        return []
    lengths = fragments.span_rows
    fragment = np.repeat(fragments.span_fragment, lengths)
    before = np.cumsum(lengths) - lengths
    ordinal = np.arange(len(fragment)) + np.repeat(fragments.span_ordinal - before, lengths)
    control = np.zeros(len(table), np.bool_)
    control[control_positions(table)] = True
    rows = np.flatnonzero(~control).astype(np.int64)
    xid = fragments.xid[fragment]
    streamed = fragments.in_stream[fragment]
    oids = _oids_and_xids(table, rows, streamed, xid)
    version = _versions_of(rows, oids, shapes, draft.shape_changes, versions)
    body_of_row = np.where(fragments.kept, fragments.body, _DROPPED)[fragment]
    runs = []
    for body in _distinct(body_of_row):
        if body == _DROPPED:
            continue
        mine = np.flatnonzero(body_of_row == body)
        closed = body == NO_BODY
        version_of_mine = version[mine]
        shapes_of_mine = _distinct(version_of_mine)
        for shape in shapes_of_mine:
            chosen = mine if len(shapes_of_mine) == 1 else mine[version_of_mine == shape]
            its = fragment[chosen]
            runs.append(
                RowRun(
                    relation=versions[shape],
                    shape=shape,
                    rows=rows[chosen],
                    ordinal=ordinal[chosen],
                    xid=xid[chosen],
                    lsn=fragments.lsn[its] if closed else None,
                    commit_time_us=fragments.time_us[its] if closed else None,
                    body=None if closed else body,
                    in_stream=bool(streamed[chosen[0]]),
                    undecided=draft.undecided(int(its[0])),
                    position_lsn=int(fragments.position_lsn[its].min()),
                )
            )
    return runs


def truncate_runs(draft: Draft, versions: list[RelationVersion]) -> list[TruncateRun]:
    runs = []
    for fragment, ordinal, shape, xid in draft.truncates:
        lsn, body = draft.lsn[fragment], draft.body[fragment]
        if lsn == DROPPED_LSN:
            continue
        closed = body == NO_BODY
        runs.append(
            TruncateRun(
                relation=versions[shape],
                shape=shape,
                ordinal=ordinal,
                xid=xid,
                lsn=lsn if closed else None,
                commit_time_us=draft.time_us[fragment] if closed else None,
                body=None if closed else body,
                undecided=draft.undecided(fragment),
                position_lsn=draft.position_lsn[fragment],
            )
        )
    return runs


def message_runs(draft: Draft, messages: list[tuple[int, int, LogicalMessage]]) -> list[MessageRun]:
    return [
        _message_run(draft, fragment, ordinal, message)
        for fragment, ordinal, message in messages
        if fragment == NO_FRAGMENT or draft.lsn[fragment] != DROPPED_LSN
    ]


def _message_run(draft: Draft, fragment: int, ordinal: int, message: LogicalMessage) -> MessageRun:
    if fragment == NO_FRAGMENT:
        return MessageRun(message, 0, 0, message.lsn, None, None)
    xid, body = draft.xid[fragment], draft.body[fragment]
    if body == NO_BODY:
        return MessageRun(message, ordinal, xid, draft.lsn[fragment], draft.time_us[fragment], None)
    return MessageRun(message, ordinal, xid, None, None, body, in_doubt=fragment in draft.streamed)


def _distinct(values: NDArray[np.int64]) -> list[int]:
    """The distinct values, ascending. Nearly always there is one, which two passes show for less
    than a sort.
    """
    if not len(values):
        return []
    low = int(values.min())
    return [low] if low == int(values.max()) else [int(value) for value in np.unique(values)]


def _oids_and_xids(
    table: FrameTable, rows: NDArray[np.int64], streamed: NDArray[np.bool_], xid: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Relation oid of each row; writes the subtransaction ids of streamed rows into `xid`."""
    oids = np.empty(len(rows), np.int64)
    plain = ~streamed
    if plain.any():
        oids[plain] = relation_oids(table, rows[plain], in_stream=False)
    if streamed.any():
        oids[streamed] = relation_oids(table, rows[streamed], in_stream=True)
        xid[streamed] = stream_xids(table, rows[streamed])
    return oids


def _versions_of(
    rows: NDArray[np.int64],
    oids: NDArray[np.int64],
    shapes: dict[int, int],
    changes: list[tuple[int, int]],
    versions: list[RelationVersion],
) -> NDArray[np.int64]:
    """The relation version in force at each row. `changes` are (frame position, oid) in wire order;
    their versions are the last ones of `versions`.
    """
    result = np.empty(len(rows), np.int64)
    first_new = len(versions) - len(changes)
    cuts = np.searchsorted(rows, np.asarray([position for position, _ in changes], np.int64))
    bounds = [0, *cuts.tolist(), len(rows)]
    for number, (low, high) in enumerate(pairwise(bounds)):
        if number:
            shapes[changes[number - 1][1]] = first_new + number - 1
        if low == high:
            continue
        part = oids[low:high]
        for oid in _distinct(part):
            shape = shapes.get(oid)
            if shape is None:
                raise ProtocolViolation(f"a row names relation {oid}, which was not announced")
            result[low:high][part == oid] = shape
    return result
