"""The slot by hand: what it is, whether the manifest can go on from it, and the two acts that only
a person may decide.

Invariant: neither act can lose a change that no manifest entry holds without that being asked for
by name: a slot is advanced no further than the manifest, and dropping one is for pipelines that are
over. (PostgreSQL: Replication Management Functions.)
"""

from contextlib import closing
from dataclasses import dataclass

from sluice.errors import SlotBusy, SlotLost, StoreUnavailable, UsageError
from sluice.ingest.start import prove_log
from sluice.lsn import show
from sluice.manifest.reader import load_state
from sluice.manifest.values import PipelineState
from sluice.source.continuity import not_yet, prove_continuity, require_same_database
from sluice.source.facts import Place, ServerFacts, SlotFacts
from sluice.source.sessions import Connection, KnownSource, SourceOptions, open_query
from sluice.source.slot import advance_slot, drop_slot
from sluice.source.slot_facts import server_facts, slot_facts
from sluice.store.base import ObjectStore


@dataclass(frozen=True, slots=True)
class SlotReport:
    """`problem` is why the pipeline cannot go on from this slot, empty when it can; `remedy` what to do. `unread` is
    why that is not known: the manifest could not be read.
    """

    server: ServerFacts
    slot: SlotFacts | None
    manifest: PipelineState
    problem: str
    remedy: str
    unread: StoreUnavailable | None = None


def examine(options: SourceOptions, store: ObjectStore, *, two_phase: bool) -> SlotReport:
    """Raises SourceError, StoreRefused, ManifestCorrupt."""
    with closing(open_query(options)) as connection:
        try:
            slot, state, server = in_order(connection, options, store)
            if state.opened is None and slot is None:
                return SlotReport(
                    server, None, state, "", "the pipeline has not run yet: `sluice setup` or a start creates the slot"
                )
            if slot is not None and (waits := not_yet(slot, server)):
                return SlotReport(server, slot, state, "", f"nothing: the slot {waits}")
            prove_continuity(state.opened, state.through_lsn, server=server, slot=slot, two_phase=two_phase)
            if slot is not None and slot.active_pid is None:
                prove_log(connection, options, store, state, server=server, slot=slot)
        except SlotLost as error:
            return SlotReport(server, slot, state, str(error), error.hint)
        except StoreUnavailable as error:
            problem = f"whether the pipeline can go on from it is not known: {error}"
            server, slot = server_facts(connection, options), slot_facts(connection, options.slot)
            return SlotReport(server, slot, PipelineState(), problem, error.hint, unread=error)
    return SlotReport(server, slot, state, "", "")


def in_order(
    connection: Connection, options: SourceOptions, store: ObjectStore
) -> tuple[SlotFacts | None, PipelineState, ServerFacts]:
    """What `prove_continuity` compares, each read after what it must not be behind of: while ingest runs, all
    of it moves, and another order looks like changes that are lost.
    """
    slot = slot_facts(connection, options.slot)
    state = load_state(store)
    return slot, state, server_facts(connection, options)


def drop(options: SourceOptions, store: ObjectStore) -> None:
    """Drops the slot, which nobody may be using: the server then forgets what the pipeline has not
    received. Raises SlotLost, also for a server or a database that is not the manifest's; SlotBusy,
    SourceError, StoreError.
    """
    opened = load_state(store).opened
    with closing(open_query(options)) as connection:
        server = server_facts(connection, options)
        if opened is not None:
            # A promoted standby may have the slot, too: its timeline is no reason to keep it.
            require_same_database(Place.of(opened), Place.of(server))
        _idle(connection, options.slot)
    drop_slot(KnownSource.of(options, server))


def advance(options: SourceOptions, store: ObjectStore, *, to_lsn: int) -> int:
    """Moves the slot forward, to free WAL while nothing runs; returns where it is then. Raises
    UsageError for a position that the manifest has not reached.
    """
    state = load_state(store)
    if state.opened is None:
        raise UsageError("the pipeline has no manifest: there is nothing to advance to", hint="`sluice run` begins it")
    if to_lsn > state.through_lsn:
        raise UsageError(
            f"the manifest holds changes through {show(state.through_lsn)}: a slot at {show(to_lsn)} "
            "would lose what comes after it",
            hint=f"advance it to {show(state.through_lsn)} at most",
        )
    source = KnownSource.of(options, state.opened)
    with closing(open_query(source)) as connection:
        slot = _idle(connection, options.slot)
    if slot.confirmed_flush_lsn is not None and to_lsn <= slot.confirmed_flush_lsn:
        return slot.confirmed_flush_lsn
    return advance_slot(source, to_lsn)


def _idle(connection: Connection, name: str) -> SlotFacts:
    slot = slot_facts(connection, name)
    if slot is None:
        raise SlotLost(
            f"MISSING: replication slot {name} does not exist",
            hint="`sluice slot show` says what this means for the pipeline",
        )
    if slot.active_pid is not None:
        raise SlotBusy(f"slot {name} is in use by process {slot.active_pid}", hint="stop the pipeline first")
    return slot
