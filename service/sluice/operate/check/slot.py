"""Preflight of our replication slot: whether it is one we can stream from, and whether it outlives
a failover.

Invariant: reads only; nothing that drops a slot is proposed but by hand. (PostgreSQL: Replication
Slots; Logical Decoding, Replication Slot Synchronization.)
"""

from collections.abc import Iterator

from sluice.findings import Finding
from sluice.operate.check.server import Look
from sluice.quoting import quote_literal
from sluice.source.continuity import SlotProblem, not_yet, slot_problems
from sluice.source.facts import SlotFacts
from sluice.source.slot import FAILOVER_SINCE

_RELOAD = "SELECT pg_reload_conf();"


def examine_slot(look: Look, *, two_phase: bool) -> Iterator[Finding]:
    """`two_phase` is what the configuration wants."""
    slot = look.slot
    if slot is None:
        yield Finding(
            "info",
            "slot.missing",
            look.options.slot,
            "the slot does not exist yet: `sluice setup` or the first run creates it",
        )
        return
    problems = list(slot_problems(slot, look.server, two_phase=two_phase))
    for problem in problems:
        if problem.case in ("WRONG_PLUGIN", "WRONG_DATABASE"):
            seen = (
                f"it is a slot of plugin {slot.plugin or 'none'} in database {slot.database or 'none'}, not "
                f"one of pgoutput in {look.server.database}"
            )
            yield Finding("critical", "slot.wrong", slot.name, seen, fix_setting="source.slot: another name")
            return
    yield from _usable(look, slot, problems)
    if look.version >= FAILOVER_SINCE:
        yield from _failover(look, slot)


def _usable(look: Look, slot: SlotFacts, problems: list[SlotProblem]) -> Iterator[Finding]:
    if slot.synced and look.server.in_recovery:
        seen = "the server synchronizes it from its primary, for a failover: no client can stream from it here"
        yield Finding(
            "critical",
            "slot.synced",
            slot.name,
            seen,
            fix_setting="source.dsn: the primary, or source.slot: another name",
        )
    for problem in problems:
        if problem.case == "INVALIDATED":
            yield Finding(
                "critical",
                "slot.invalidated",
                slot.name,
                f"it {problem.seen}",
                fix_sql=f"SELECT pg_drop_replication_slot({quote_literal(slot.name)});",
                fix_setting="then resync the tables",
                by_hand=True,
            )
        elif problem.case == "TWO_PHASE":
            yield Finding("critical", "slot.two_phase", slot.name, f"it {problem.seen}", fix_setting=problem.hint)
    if not slot.invalidated and slot.wal_status == "unreserved":
        seen = "its WAL is about to be removed: start the pipeline now, or raise max_slot_wal_keep_size"
        yield Finding(
            "critical",
            "slot.unreserved",
            slot.name,
            seen,
            fix_sql=f"ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; {_RELOAD}",
        )
    if slot.active_pid is not None:
        waits = not_yet(slot, look.server) if slot.is_being_made else ""
        seen = f"it {waits}" if waits else f"process {slot.active_pid} streams from it now"
        yield Finding("info", "slot.active", slot.name, seen)


def _failover(look: Look, slot: SlotFacts) -> Iterator[Finding]:
    standbys = [
        str(name)
        for (name,) in look.conn.execute(
            b"SELECT slot_name FROM pg_catalog.pg_replication_slots"
            b" WHERE slot_type = 'physical' AND NOT temporary ORDER BY 1"
        ).fetchall()
    ]
    if not standbys or look.server.in_recovery:
        return
    if not slot.failover:
        seen = (
            f"the server has standbys ({', '.join(standbys[:5])}), and this slot has no failover flag: it "
            "would not survive a failover to one of them"
        )
        command = f'psql "... replication=database" -c \'ALTER_REPLICATION_SLOT "{slot.name}" (FAILOVER true)\''
        yield Finding(
            "warning",
            "slot.failover",
            slot.name,
            seen,
            fix_setting=f"while nothing streams: {command}; on the standby sync_replication_slots = on",
        )
    elif not look.settings.get("synchronized_standby_slots"):
        seen = (
            f"it is empty: the stream can be ahead of the standbys ({', '.join(standbys[:5])}): after a "
            "failover the lake would hold rows that are gone"
        )
        fix = f"ALTER SYSTEM SET synchronized_standby_slots = {quote_literal(standbys[0]).strip()}; {_RELOAD}"
        words = (
            "synchronized_standby_slots: the slots of the standbys that may be promoted; the stream then waits for them"
        )
        yield Finding(
            "warning",
            "server.synchronized_standbys",
            "synchronized_standby_slots",
            seen,
            fix_sql=fix,
            fix_setting=words,
            by_hand=True,
        )
