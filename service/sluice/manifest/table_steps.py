"""What an entry makes of the table that it is about. Pure.

Invariant: a table changes its generation upwards only, and no version and no generation is used twice, not even
of an id that was forgotten and came back. An entry that says no state leaves it as it is.
"""

from collections.abc import Mapping
from dataclasses import replace

from sluice.contract import keys
from sluice.contract.description import NOTHING
from sluice.contract.entries import Entry, Table
from sluice.contract.lake_names import split
from sluice.contract.resyncs import Resyncs
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.manifest.examined import held_lsn
from sluice.manifest.values import Pause, PipelineState, TableState, corrupt


def stated(state: PipelineState, entry: Entry, new: Table, *, old: TableState | None) -> TableState:
    """The table after `new`, of `entry`; `old` is the table before, None for one that joins. Raises ManifestCorrupt."""
    seq = entry.seq
    if new.state is None:
        return _as_it_was(state, entry, new, old=old)
    if new.state == State.PAUSED:
        raise corrupt(seq, f"gives table {new.table_id} the state paused, which is none of its own")
    if old is not None and new.generation < old.generation:
        raise corrupt(seq, f"takes table {new.table_id} back from generation {old.generation} to {new.generation}")
    begins = old is None or new.generation > old.generation
    known = None if begins else old
    if known is not None and known.gap is not None and new.state.has_initial_rows:
        raise corrupt(seq, f"calls table {new.table_id} {new.state}, whose gap is open")
    if known is not None and known.state == State.DETACHED == new.state and new.why is None and new.schema is None:
        return _forgotten(known, new, seq=seq)
    reshaped = known is not None and new.schema is not None and new.state == known.state
    schemas = _schemas(seq, old, new)
    place = split(new.path or keys.lake_path(new.schema_name, new.table_name))
    return TableState(
        table_id=new.table_id,
        schema_name=new.schema_name,
        table_name=new.table_name,
        state=new.state,
        why=new.why,
        lsn=known.lsn if known and reshaped else new.lsn,
        generation=new.generation,
        generation_seq=known.generation_seq if known else seq,
        schemas=schemas,
        schema_lsns=_schema_lsns(known, new, newest=max(schemas, default=0), reshaped=reshaped),
        known_lsns=_known_lsns(state, known, schemas if reshaped else {}),
        relfilenode=new.relfilenode or (old.relfilenode if old else 0),
        fingerprint=new.fingerprint or (old.fingerprint if old else ""),
        snapshot=known.snapshot if known else None,
        unsent_lsn=known.unsent_lsn if known else 0,
        since=known.since if known is not None and known.state == new.state else entry.written_at,
        cause=new.cause,
        resync_at=new.resync_at,
        resyncs=(old.resyncs.begun(new.cause, entry.written_at) if begins else old.resyncs) if old else Resyncs(),
        path=known.path if known else place[0],
        pattern=known.pattern if known else place[1],
        first_name=old.first_name if old and old.state != State.DETACHED else (new.schema_name, new.table_name),
        paused=_paused(entry, old, new),
        gaps=known.gaps if known else (),
        stated_seq=seq,
        schema_seq=known.schema_seq if known and new.schema is None else seq,
        held_lsn=held_lsn(state, old),
        described=new.described or (old.described if old else NOTHING),
    )


def _as_it_was(state: PipelineState, entry: Entry, new: Table, *, old: TableState | None) -> TableState:
    """In the state that it is in, with what else `new` says."""
    seq = entry.seq
    if old is None or old.generation != new.generation:
        raise corrupt(seq, f"says no state of table {new.table_id}, which is unknown or of another generation")
    schemas = _schemas(seq, old, new)
    return replace(
        old,
        schema_name=new.schema_name,
        table_name=new.table_name,
        schemas=schemas,
        schema_lsns={**old.schema_lsns, max(schemas): new.lsn} if new.schema is not None else old.schema_lsns,
        known_lsns=_known_lsns(state, old, schemas if new.schema is not None else {}),
        relfilenode=new.relfilenode or old.relfilenode,
        fingerprint=new.fingerprint or old.fingerprint,
        first_name=old.first_name if old.state != State.DETACHED else (new.schema_name, new.table_name),
        paused=_paused(entry, old, new),
        stated_seq=seq,
        schema_seq=old.schema_seq if new.schema is None else seq,
        described=new.described or old.described,
    )


def _paused(entry: Entry, old: TableState | None, new: Table) -> Pause | None:
    """A generation that begins while the table is paused waits from its first row on."""
    before = old.paused if old is not None else None
    if new.paused is False or new.state == State.DETACHED or (before is None and not new.paused):
        return None
    if before is None:
        return Pause(entry.written_at)
    return before if old is not None and new.generation == old.generation else Pause(before.since)


def _schema_lsns(known: TableState | None, new: Table, *, newest: int, reshaped: bool) -> dict[int, int]:
    if known is None:
        return {newest: 0}
    return {**known.schema_lsns, newest: new.lsn} if reshaped else known.schema_lsns


def _known_lsns(state: PipelineState, known: TableState | None, begun: Mapping[int, TableSchema]) -> dict[int, int]:
    """With the newest version of `begun`, if there are any."""
    before = known.known_lsns if known is not None else {}
    return {**before, max(begun): held_lsn(state, known)} if begun else before


def _schemas(seq: int, old: TableState | None, new: Table) -> dict[int, TableSchema]:
    known = old.schemas if old else {}
    if old and (old.schema_name, old.table_name) != (new.schema_name, new.table_name):
        known = {version: schema.named(new.schema_name, new.table_name) for version, schema in known.items()}
    if new.schema is None or known.get(new.schema.version) == new.schema:
        return known
    expected = old.next_version if old else 1
    if new.schema.table_id != new.table_id or new.schema.version != expected:
        raise corrupt(
            seq, f"introduces schema version {new.schema.version} of table {new.table_id} after {expected - 1}"
        )
    return {**known, new.schema.version: new.schema}


def _forgotten(known: TableState, said: Table, *, seq: int) -> TableState:
    """What stays of a table that left and whose entry `seq` says so again, without a reason: nothing will refer to
    it any more. Whether it is time is for the writer to know (`ingest.tables.forgetting`).
    """
    return replace(
        known,
        schema_name=said.schema_name,
        table_name=said.table_name,
        first_name=(said.schema_name, said.table_name),
        why=None,
        lsn=0,
        schemas={},
        schema_lsns={known.next_version - 1: 0},
        known_lsns={},
        relfilenode=0,
        fingerprint="",
        snapshot=None,
        unsent_lsn=0,
        cause="",
        resync_at="",
        resyncs=Resyncs(),
        gaps=(),
        stated_seq=seq,
        described=NOTHING,
    )
