"""Making, moving and dropping the replication slot.

Invariant: a slot is created only by `ensure_slot`, and dropped or moved only when a person asks for
it. (PostgreSQL: CREATE_REPLICATION_SLOT; Replication Management Functions.)
"""

from contextlib import closing, suppress

from sluice import lsn
from sluice.errors import SlotBusy, SlotLost, SourceError, SourceRefused
from sluice.quoting import quote_slot
from sluice.source.binary import require_binary
from sluice.source.continuity import TWO_PHASE_SINCE
from sluice.source.facts import SlotFacts
from sluice.source.sessions import (
    Connection,
    KnownSource,
    SourceOptions,
    open_query,
    open_replication,
    translated,
)
from sluice.source.slot_facts import slot_facts
from sluice.source.snapshot_export import Waiting, create_slot

FAILOVER_SINCE = 170000
"""Version, as libpq numbers it, since which a slot can be synchronised to standbys."""
FAILOVER_WITH_TWO_PHASE_SINCE = 180000
"""17 synchronises the flag, and not the position from which transactions are decoded at PREPARE."""


def can_fail_over(conn: Connection, *, two_phase: bool) -> bool:
    """Whether a slot made on this server can be one that its standbys keep in step, so that it survives
    a failover. Raises SourceError.
    """
    with translated("asking whether the server is a standby"):
        row = conn.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
    assert row is not None
    since = FAILOVER_WITH_TWO_PHASE_SINCE if two_phase else FAILOVER_SINCE
    return conn.pgconn.server_version >= since and not row[0]


def ensure_slot(
    options: SourceOptions, *, two_phase: bool = False, failover: bool = False, waiting: Waiting | None = None
) -> SlotFacts:
    """The pipeline's slot, created when it is missing. The publication must exist already. Raises
    SourceError.

    Creation waits for every older transaction, and says so in the log and to `waiting`.
    """
    with closing(open_query(options)) as conn:
        found = slot_facts(conn, options.slot)
        if found is not None:
            return found
        if options.binary:
            # Refused before there is a slot that would hold back WAL for a pipeline that cannot run.
            require_binary(options)
        version = conn.pgconn.server_version
        for wanted, name, since in ((two_phase, "two_phase", TWO_PHASE_SINCE), (failover, "failover", FAILOVER_SINCE)):
            if wanted and version < since:
                raise SourceRefused(
                    f"{name} slots need PostgreSQL {since // 10000}, the server is {version // 10000}",
                    hint=f"leave source.{name} off",
                )
        flags = []
        if two_phase:
            flags.append("TWO_PHASE")
        if failover:
            flags.append("FAILOVER")
        # The parenthesised form is unknown to 14, and to all only FAILOVER needs it.
        suffix = f"(SNAPSHOT 'nothing', {', '.join(flags)})" if failover else " ".join(["NOEXPORT_SNAPSHOT", *flags])
        creating = open_replication(options)
        try:
            create_slot(
                creating,
                f"CREATE_REPLICATION_SLOT {quote_slot(options.slot)} LOGICAL pgoutput {suffix}",
                what="the new replication slot",
                options=options,
                waiting=waiting,
            )
        finally:
            creating.close()
        created = slot_facts(conn, options.slot)
    if created is None:
        raise SlotLost(
            f"MISSING: slot {options.slot} vanished right after it was created",
            hint="find out who drops slots on this server",
        )
    return created


def active_process(options: SourceOptions) -> int | None:
    """The server process that sends to whoever receives from the slot now. Raises SourceError."""
    with closing(open_query(options)) as conn:
        slot = slot_facts(conn, options.slot)
    return slot.active_pid if slot is not None else None


def require_nobody_receives(options: SourceOptions) -> None:
    """Raises SlotBusy when a process receives from the slot now. A server that cannot be asked says
    nothing of it.
    """
    pid = None
    with suppress(SourceError):
        pid = active_process(options)
    if pid is not None:
        raise SlotBusy(
            f"another process runs this pipeline: server process {pid} sends to it from slot {options.slot}",
            hint="stop that process first; two processes cannot share a slot",
        )


def drop_slot(source: KnownSource) -> None:
    """Drops the slot of a source that was compared with the manifest, which nobody may be using. Raises
    SlotBusy, SourceError, and SlotLost or SourceMoved for another server.
    """
    with closing(open_query(source)) as conn, translated("dropping the replication slot", slot=source.slot):
        conn.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", (source.slot,))


def advance_slot(source: KnownSource, to_lsn: int) -> int:
    """Moves the slot forward and returns its new position. The server no longer sends what the slot has passed."""
    with closing(open_query(source)) as conn, translated("advancing the replication slot", slot=source.slot):
        row = conn.execute(
            "SELECT end_lsn::text FROM pg_catalog.pg_replication_slot_advance(%s, %s::pg_lsn)",
            (source.slot, lsn.show(to_lsn)),
        ).fetchone()
    assert row is not None
    return lsn.parse(row[0])
