"""Goes on with another slot after the pipeline's own was lost, and says in the manifest what is missing.

Invariant: nothing is called equal that may not be. The one entry that takes the pipeline past the
changes that are lost also says so of each table: those that can be compared by their keys have a gap, all
others are stale. Before it is durable ingest refuses the new slot by name (AHEAD), so a crash at any step is
a command to be given again. Only a slot that is of no use any more is dropped. One that decodes at PREPARE
is of none when it is further on: it may have passed a PREPARE whose COMMIT PREPARED is still to come, and
sends the one without the other. Making a new one waits for the end of what is prepared.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from sluice import faults
from sluice.contract.entries import Lost
from sluice.contract.table_state import State
from sluice.errors import SlotBusy, SlotLost, UsageError
from sluice.ingest.epoch import opened_entry
from sluice.ingest.options import IngestOptions
from sluice.ingest.start import Start, prove_log
from sluice.lsn import show
from sluice.manifest.values import PipelineState, TableState
from sluice.manifest.writer import ManifestLog
from sluice.operate.slots import in_order
from sluice.source.continuity import prove_continuity, slot_problems
from sluice.source.facts import ServerFacts, SlotFacts
from sluice.source.publication import require_publication
from sluice.source.sessions import Connection, KnownSource, open_query, translated
from sluice.source.slot import can_fail_over, drop_slot, ensure_slot
from sluice.store.base import ObjectStore

RECOVERABLE = ("MISSING", "INVALIDATED", "AHEAD")
"""Cases of SlotLost in which the server is the right one and its log goes on from the manifest's."""
_UPGRADED = "the server was upgraded by pg_upgrade, and its slot begins anew"


@dataclass(frozen=True, slots=True)
class Recreated:
    """Changes that ended after `from_lsn` and at or before `to_lsn` are lost. Names are schema.table."""

    from_lsn: int
    to_lsn: int
    gaps: tuple[str, ...]
    stale: tuple[str, ...]


def recreate(
    options: IngestOptions,
    store: ObjectStore,
    *,
    mirrored: Callable[[str], bool],
    resync: Callable[[str], None] = lambda _: None,
    upgraded: bool = False,
) -> Recreated:
    """Makes a new slot where the old one was lost, and records the gap. `mirrored` says of a table's name
    whether the lake keeps one row for each of the source. `resync` asks that a table which will be stale is
    read again: before the gap is recorded, since ingest does not start before, and since the command does
    nothing any more when it is given again. `upgraded` is an operator's word that pg_upgrade made this server
    from the one that the manifest was written from.

    Raises UsageError when the slot is as it should be, SlotLost when the server is another one or does not
    have what the manifest has, SlotBusy, WriterFenced, SourceError, StoreError.
    """
    source = options.source
    with closing(open_query(source)) as connection:
        slot, state, server = in_order(connection, source, store)
        if state.opened is None:
            hint = "`sluice run` begins it"
            raise UsageError("the pipeline has no manifest: there is nothing to continue from", hint=hint)
        if upgraded:
            require_upgrade(state, server, connection)
            reason = _UPGRADED
        else:
            reason = _what_is_lost(connection, options, store, state, server=server, slot=slot)
        require_publication(connection, source.publication)
        slot = _made(options, connection, slot, server)
    assert slot.confirmed_flush_lsn is not None
    to_lsn = slot.confirmed_flush_lsn
    if to_lsn < state.through_lsn:
        raise SlotLost(
            f"DIVERGED: a new slot begins at {show(to_lsn)}, before {show(state.through_lsn)}, where the manifest ends",
            hint="the server was restored or failed over to an older state: begin a new pipeline",
        )
    faults.point("slot.recreated")
    lost = Lost(
        reason, tuple(table.table_id for table in state.tables.values() if _is_repairable(table, state, mirrored))
    )
    opened = opened_entry(options, Start(state, server, to_lsn), lost=lost)
    for name in _stale(state, lost):
        resync(name)
    log = ManifestLog.open(store, opened, state, through_lsn=to_lsn)
    faults.point("gap.recorded")
    return _summary(state, log.state)


def require_upgrade(state: PipelineState, server: ServerFacts, connection: Connection) -> None:
    """Raises UsageError or SlotLost unless the server can be what pg_upgrade made of the manifest's: a newer
    major under another identifier, with the same database, and the same tables under the same oids.
    """
    opened = state.opened
    assert opened is not None
    if opened.system_identifier == server.system_identifier:
        raise UsageError("this is the server of the manifest: it was not upgraded", hint="leave out --upgraded")
    if server.server_version // 10000 <= opened.server_version // 10000:
        raise SlotLost(
            f"WRONG_CLUSTER: an upgrade leads to a newer major version than {opened.server_version // 10000}, and this "
            f"server is PostgreSQL {server.server_version // 10000}",
            hint="correct source.dsn, or begin a new pipeline",
        )
    if (opened.database, opened.database_oid) != (server.database, server.database_oid):
        raise SlotLost(
            f"WRONG_DATABASE: connected to {server.database} (oid {server.database_oid}), the manifest is of "
            f"{opened.database} (oid {opened.database_oid}); pg_upgrade to 15 and later keeps both",
            hint="correct source.dsn, or begin a new pipeline",
        )
    oids = {int(table.table_id) for table in state.tables.values() if table.state.is_followed and table.table_id != "0"}
    with translated("comparing the tables with those of the manifest"):
        rows = connection.execute(
            "SELECT c.oid::bigint, n.nspname, c.relname FROM pg_catalog.pg_class c "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid::bigint = ANY(%s)",
            (sorted(oids),),
        ).fetchall()
    names = {str(oid): (schema, name) for oid, schema, name in rows}
    other = [
        f"{table.schema_name}.{table.table_name}"
        for table_id, table in state.tables.items()
        if int(table_id) in oids and names.get(table_id) != (table.schema_name, table.table_name)
    ]
    if other:
        raise SlotLost(
            f"WRONG_CLUSTER: {', '.join(sorted(other)[:5])} has another oid here than in the manifest, which "
            "pg_upgrade keeps",
            hint="this server was not made by pg_upgrade: begin a new pipeline",
        )


def _what_is_lost(
    connection: Connection,
    options: IngestOptions,
    store: ObjectStore,
    state: PipelineState,
    *,
    server: ServerFacts,
    slot: SlotFacts | None,
) -> str:
    try:
        prove_continuity(state.opened, state.through_lsn, server=server, slot=slot, two_phase=options.two_phase)
        if slot is not None:
            prove_log(connection, options.source, store, state, server=server, slot=slot)
    except SlotLost as error:
        case = str(error).partition(":")[0]
        if case not in RECOVERABLE:
            raise
        return f"the replication slot was lost ({case}): changes after {show(state.through_lsn)} were not received"
    raise UsageError(
        f"slot {slot.name if slot else ''} has everything after the end of the manifest: nothing is "
        "lost, and nothing was done",
        hint="start ingest; if it says that a file of the log is gone, run `sluice slot drop` first",
    )


def _made(options: IngestOptions, connection: Connection, slot: SlotFacts | None, server: ServerFacts) -> SlotFacts:
    """The slot to go on with. One that is sound and only further on is taken as it is, unless it decodes at
    PREPARE.
    """
    if slot is not None and slot.active_pid is not None:
        raise SlotBusy(f"slot {slot.name} is in use by process {slot.active_pid}", hint="stop the pipeline first")
    if slot is not None and (
        slot.two_phase or any(True for _ in slot_problems(slot, server, two_phase=options.two_phase))
    ):
        drop_slot(KnownSource.of(options.source, server))
        slot = None
    return slot or ensure_slot(
        KnownSource.of(options.source, server),
        two_phase=options.two_phase,
        failover=can_fail_over(connection, two_phase=options.two_phase),
    )


def _is_repairable(table: TableState, state: PipelineState, mirrored: Callable[[str], bool]) -> bool:
    schema = table.schemas.get(table.schema_version)
    return (
        table.state in (State.LIVE, State.GAP)
        and schema is not None
        and schema.is_keyed
        and table.schema_lsn < state.through_lsn
        and set("iudt") <= set(table.publishes)
        and mirrored(f"{table.schema_name}.{table.table_name}")
    )


def _stale(state: PipelineState, lost: Lost) -> list[str]:
    """Tables that no comparison can help."""
    return sorted(
        f"{table.schema_name}.{table.table_name}"
        for table in state.tables.values()
        if table.state.is_followed and table.table_id not in lost.repairable and table.table_id != "0"
    )


def _summary(before: PipelineState, after: PipelineState) -> Recreated:
    def names(state: State) -> tuple[str, ...]:
        return tuple(
            sorted(
                f"{table.schema_name}.{table.table_name}"
                for table_id, table in after.tables.items()
                if table.state == state and before.tables[table_id].state.is_followed and table_id != "0"
            )
        )

    return Recreated(before.through_lsn, after.through_lsn, names(State.GAP), names(State.STALE))
