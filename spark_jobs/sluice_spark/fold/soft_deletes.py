"""A window as rows that stay when they are deleted, and say since when.

Owns: the row of a key is the last one that lived when a transaction ended, with the time of the commit that
deleted it; a row that was deleted before stays as it was. Pure.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice_spark.fold.fold import DELETED, Folded
from sluice_spark.fold.row_identity import Numbers
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

_OWN = (envelope.DELETED_AT, envelope.LSN, envelope.TS)


@dataclass(frozen=True, slots=True)
class SoftDeletes:
    """How rows of `schema` go on from those of the lake. DELETED says of a net change that it deletes the row that
    the lake has, of which the window has no value.
    """

    schema: TableSchema

    @property
    def only(self) -> str:
        """See Settlement."""
        return ""

    def settled(self, rows: pa.Table, old: pa.Table, found: Numbers) -> pa.Table:
        """See Settlement."""
        own = where_found(len(rows), found)
        base = rows[BASE].to_numpy()
        places = np.where(base >= 0, own[np.maximum(base, 0)], NOWHERE)
        deleted = rows[DELETED].to_numpy()
        stays = ~deleted | (own >= 0)
        rows, own, places, deleted = (
            rows.filter(pa.array(stays)),
            own[stays],
            places[stays],
            deleted[stays],
        )
        rows = with_kept_values(rows, old, places, self.schema)
        before = old[envelope.DELETED_AT].is_valid().to_numpy()
        dead = deleted & np.append(before, values=False)[own]
        for name in _OWN:
            if name in old.column_names:
                rows = replaced(rows, name, chosen(rows[name], old[name], np.where(dead, own, NOWHERE)))
        return rows


def soft_deletes(rows: pa.Table, schema: TableSchema, *, removals_sent: bool) -> Folded:
    """The net changes that united ones make. Raises UnsupportedChange."""
    found = timeline(rows, schema, removals_sent=removals_sent)
    states = found.states
    last = np.flatnonzero(states.last)
    ended = states.of(last)
    # Of a row that is gone the state before it in the window, if there is one: it was alive.
    before = np.where(~ended.alive & ~states.first[last], last - 1, last)
    shown = states.of(before)
    lake = ~shown.alive
    base = np.full(found.keys.count + 1, NOWHERE, dtype=np.int64)
    base[ended.key] = np.arange(len(last))
    columns = payload(found, shown, schema.columns, lake=lake)
    columns |= {
        envelope.DELETED_AT: at(found.ts, np.where(ended.alive, NOWHERE, ended.place)),
        envelope.LSN: at(found.lsn, ended.place),
        envelope.TS: at(found.ts, ended.place),
        BASE: pa.array(np.where(lake, np.arange(len(last)), base[shown.origin])),
        DELETED: pa.array(lake),
    }
    table = with_keys(columns, found, ended.key, match=np.ones(len(last), dtype=bool))
    sweep = None
    if found.truncated >= 0:
        lsn, ts = found.lsn[found.truncated].as_py(), found.ts[found.truncated].cast(pa.int64()).as_py()
        time = f"timestamp_micros({ts}L)"
        assignments = ((envelope.DELETED_AT, time), (envelope.LSN, f"{lsn}L"), (envelope.TS, time))
        sweep = Sweep(f"t.`{envelope.DELETED_AT}` IS NULL", assignments)
    return Folded(table, settlement=SoftDeletes(schema), sweep=sweep)
