"""What an entry makes of the table that it is about. Pure.

Invariant: a table changes its generation upwards only, and no version and no generation is used twice, not even
of an id that was forgotten and came back. An entry that says no state leaves it as it is.
"""

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
    if new.state is None and (old is None or old.generation != new.generation):
        raise corrupt(seq, f"says no state of table {new.table_id}, which is unknown or of another generation")
    if new.state == State.PAUSED:
        raise corrupt(seq, f"gives table {new.table_id} the state paused, which is none of its own")
    if old is not None and new.generation < old.generation:
        raise corrupt(seq, f"takes table {new.table_id} back from generation {old.generation} to {new.generation}")
    if old is None or new.generation > old.generation:
        return _begun(state, entry, new, old=old)
    if new.state is not None and new.state.has_initial_rows and old.gap is not None:
        raise corrupt(seq, f"calls table {new.table_id} {new.state}, whose gap is open")
    if old.state == State.DETACHED == new.state and new.why is None and new.schema is None:
        return _forgotten(old, new, seq=seq)
    return _gone_on(state, entry, new, old=old)


def _begun(state: PipelineState, entry: Entry, new: Table, *, old: TableState | None) -> TableState:
    """In a generation that begins."""
    assert new.state is not None
    schemas = _schemas(entry.seq, old, new)
    path, pattern = split(new.path or keys.lake_path(new.schema_name, new.table_name))
    return TableState(
        table_id=new.table_id,
        schema_name=new.schema_name,
        table_name=new.table_name,
        state=new.state,
        why=new.why,
        lsn=new.lsn,
        generation=new.generation,
        generation_seq=entry.seq,
        schemas=schemas,
        schema_lsns={max(schemas, default=0): 0},
        relfilenode=new.relfilenode or (old.relfilenode if old else 0),
        fingerprint=new.fingerprint or (old.fingerprint if old else ""),
        since=entry.written_at,
        cause=new.cause,
        resync_at=new.resync_at,
        resyncs=old.resyncs.begun(new.cause, entry.written_at) if old else Resyncs(),
        path=path,
        pattern=pattern,
        first_name=old.first_name if old and old.state != State.DETACHED else (new.schema_name, new.table_name),
        paused=_paused(entry, old, new),
        stated_seq=entry.seq,
        schema_seq=entry.seq,
        held_lsn=held_lsn(state, old),
        described=new.described or (old.described if old else NOTHING),
    )


def _gone_on(state: PipelineState, entry: Entry, new: Table, *, old: TableState) -> TableState:
    """In the generation that is in force, with what else `new` says."""
    schemas = _schemas(entry.seq, old, new)
    reshaped = new.schema is not None and new.state in (None, old.state)
    after = replace(
        old,
        schema_name=new.schema_name,
        table_name=new.table_name,
        schemas=schemas,
        schema_lsns={**old.schema_lsns, max(schemas): new.lsn} if reshaped else old.schema_lsns,
        known_lsns={**old.known_lsns, max(schemas): held_lsn(state, old)} if reshaped else old.known_lsns,
        relfilenode=new.relfilenode or old.relfilenode,
        fingerprint=new.fingerprint or old.fingerprint,
        first_name=old.first_name if old.state != State.DETACHED else (new.schema_name, new.table_name),
        paused=_paused(entry, old, new),
        stated_seq=entry.seq,
        schema_seq=old.schema_seq if new.schema is None else entry.seq,
        described=new.described or old.described,
    )
    if new.state is None:
        return after
    return replace(
        after,
        state=new.state,
        why=new.why,
        lsn=old.lsn if reshaped else new.lsn,
        since=old.since if old.state == new.state else entry.written_at,
        cause=new.cause,
        resync_at=new.resync_at,
        held_lsn=held_lsn(state, old),
    )


def _paused(entry: Entry, old: TableState | None, new: Table) -> Pause | None:
    """A generation that begins while the table is paused waits from its first row on."""
    before = old.paused if old is not None else None
    if new.paused is False or new.state == State.DETACHED or (before is None and not new.paused):
        return None
    if before is None:
        return Pause(entry.written_at)
    return before if old is not None and new.generation == old.generation else Pause(before.since)


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
