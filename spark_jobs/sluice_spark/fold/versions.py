"""A window as versions of rows: each with the commits between which it was the current row.

Owns: one version for each key and transaction, by the state at its end; a version ends where the next state of
its key begins; a state that differs from the one before it in no tracked column makes no version, and takes the
place of that one. Whether it differs may depend on the row of the lake, which is known only when a window is
settled. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.contract import envelope
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice_spark.fold.fold import MATCH, Folded
from sluice_spark.fold.row_identity import Numbers, number_rows, special_rows, special_texts, whole
from sluice_spark.fold.settle import (
    BASE,
    at,
    chosen,
    payload,
    replaced,
    where_found,
    with_kept_values,
    with_keys,
)
from sluice_spark.fold.settlement import Sweep
from sluice_spark.fold.timeline import NOWHERE, timeline

_CHAIN = "_sluice_chain"
_SINCE, _UNTIL = (envelope.FROM_LSN, envelope.VALID_FROM), (envelope.TO_LSN, envelope.VALID_TO)


@dataclass(frozen=True, slots=True)
class Versions:
    """How versions of rows of `schema` go on from those of the lake. `tracked` are the columns of which another value
    makes a version.
    """

    schema: TableSchema
    tracked: tuple[ColumnSchema, ...]

    @property
    def only(self) -> str:
        """See Settlement."""
        return envelope.IS_CURRENT

    def settled(self, rows: pa.Table, old: pa.Table, found: Numbers) -> pa.Table:
        """See Settlement."""
        places = where_found(len(rows), found)
        match = rows[MATCH].to_numpy()
        base = rows[BASE].to_numpy()
        places = np.where(base >= 0, places[np.maximum(base, 0)], NOWHERE)
        stays = ~match | (places >= 0)
        rows, places, match = rows.filter(pa.array(stays)), places[stays], match[stays]
        rows = with_kept_values(rows, old, places, self.schema)
        for name in _SINCE:
            rows = replaced(rows, name, chosen(rows[name], old[name], np.where(match, places, NOWHERE)))
        return self._united(rows)

    def _united(self, rows: pa.Table) -> pa.Table:
        """Versions that follow each other without a difference become one."""
        if not len(rows):
            return rows
        chain = rows[_CHAIN].to_numpy()
        since = rows[envelope.FROM_LSN].to_numpy()
        ends = rows[envelope.TO_LSN].fill_null(np.iinfo(np.int64).max).to_numpy()
        content = content_numbers(rows, self.tracked)
        begins = np.ones(len(rows), dtype=bool)
        goes_on = (chain[1:] == chain[:-1]) & (ends[:-1] == since[1:])
        begins[1:] = ~(goes_on & ((content[1:] == content[:-1]) | (since[:-1] >= since[1:])))
        firsts = np.flatnonzero(begins)
        lasts = np.append(firsts[1:], len(rows)) - 1
        united = rows.take(pa.array(lasts))
        for name in _SINCE:
            united = replaced(united, name, whole(rows[name]).take(pa.array(firsts)))
        # Rows that were read again may replace a version that began with the same commit.
        return united.filter(pa.array(united[envelope.FROM_LSN].to_numpy() < ends[lasts]))


def content_numbers(rows: pa.Table, columns: Sequence[ColumnSchema]) -> Numbers:
    """Equal numbers for rows that are equal in `columns`, marked values included."""
    marked = special_rows(rows[envelope.SPECIAL]) if envelope.SPECIAL in rows.column_names else {}
    arrays = []
    for column in columns:
        arrays.append(whole(rows[column.name]))
        if column.lake.special:
            arrays.append(special_texts(marked, column.name, len(rows)))
    return number_rows(arrays, len(rows), bits=True)


def versions(rows: pa.Table, schema: TableSchema, *, removals_sent: bool, tracked: tuple[ColumnSchema, ...]) -> Folded:
    """The versions that united changes make, and for each key the one of the lake that they end. Raises
    UnsupportedChange.
    """
    found = timeline(rows, schema, removals_sent=removals_sent)
    states = found.states
    until = np.full(len(states.key), NOWHERE, dtype=np.int64)
    until[:-1] = np.where(states.last[:-1], NOWHERE, states.place[1:])
    ending, alive = np.flatnonzero(states.first & found.begun[states.key]), np.flatnonzero(states.alive)
    # The version that the lake has comes first, then those of its key in order.
    order = np.lexsort((np.repeat([1, 0], [len(alive), len(ending)]), np.concatenate([alive, ending])))
    state = np.concatenate([alive, ending])[order]
    ends = np.repeat([False, True], [len(alive), len(ending)])[order]
    made = states.of(state)
    since, until = np.where(ends, NOWHERE, made.place), np.where(ends, made.place, until[state])
    base = np.full(found.keys.count + 1, NOWHERE, dtype=np.int64)
    base[made.key[ends]] = np.flatnonzero(ends)
    columns = payload(found, made, schema.columns, lake=ends)
    for values, (begin, end) in ((found.lsn, (_SINCE[0], _UNTIL[0])), (found.ts, (_SINCE[1], _UNTIL[1]))):
        columns |= {begin: at(values, since), end: at(values, until)}
    columns |= {
        envelope.IS_CURRENT: pa.array(until < 0),
        BASE: pa.array(np.where(ends, np.arange(len(ends)), base[made.origin])),
        _CHAIN: pa.array(made.key),
    }
    table = with_keys(columns, found, made.key, match=ends)
    return Folded(table, settlement=Versions(schema, tracked), sweep=_sweep(found.lsn, found.ts, found.truncated))


def _sweep(lsn: pa.Array, ts: pa.Array, truncated: int) -> Sweep | None:
    if truncated < 0:
        return None
    return Sweep(
        f"t.`{envelope.IS_CURRENT}`",
        (
            (envelope.TO_LSN, f"{lsn[truncated].as_py()}L"),
            (envelope.VALID_TO, f"timestamp_micros({ts[truncated].cast(pa.int64()).as_py()}L)"),
            (envelope.IS_CURRENT, "false"),
        ),
    )


def first_versions(rows: pa.Table) -> pa.Table:
    """Rows that are all new as versions that begin with their changes."""
    return (
        rows.append_column(envelope.FROM_LSN, rows[envelope.LSN])
        .append_column(envelope.VALID_FROM, rows[envelope.TS])
        .append_column(envelope.TO_LSN, pa.nulls(len(rows), pa.int64()))
        .append_column(envelope.VALID_TO, pa.nulls(len(rows), rows.schema.field(envelope.TS).type))
        .append_column(envelope.IS_CURRENT, pa.repeat(pa.scalar(value=True), len(rows)))
    )
