"""Whether the manifest can go on from this slot. Pure.

Invariant: streaming starts only at the position that `prove_continuity` returned. Any doubt is a
SlotLost that names its case. (PostgreSQL: Logical Decoding Concepts; pg_replication_slots.)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sluice import lsn
from sluice.contract.entries import Opened
from sluice.errors import SlotLost, SourceUnavailable
from sluice.source.facts import Place, ServerFacts, SlotFacts

GO_ON = (
    "`sluice slot recreate` continues with a new slot, and `sluice verify --repair` then reads again the rows that "
    "differ"
)
"""What to do where the server is the right one and only the slot is lost."""
FIRST = 1
"""The timeline of a new cluster, which has no history."""
TWO_PHASE_SINCE = 150000
TWO_PHASE_OFF_SINCE = 180000
"""Versions, as libpq numbers them, since which a slot can be made or set to decode at PREPARE, and be
set back.
"""


def prove_continuity(
    opened: Opened | None, through_lsn: int, *, server: ServerFacts, slot: SlotFacts | None, two_phase: bool
) -> int:
    """The position to start at, when everything that committed after `through_lsn` can still be had
    from this slot. Pure.

    `opened` is the newest epoch in the manifest, None for a pipeline that never ran: then the
    slot's own position is the start. Raises SlotLost, its message beginning with the case: MISSING,
    WRONG_CLUSTER, WRONG_DATABASE, TIMELINE, WRONG_PLUGIN, INVALIDATED, TWO_PHASE, AHEAD, DIVERGED.
    Raises SourceUnavailable when the server could not say now where its timeline comes from, while the slot cannot be
    used yet, and while a standby has not replayed what the manifest has.
    """
    if opened is not None:
        require_same_database(Place.of(opened), Place.of(server))
        _same_history(opened, through_lsn, server)
    if slot is None and server.in_recovery:
        raise SlotLost(
            "MISSING: the replication slot does not exist on this server, which is a standby",
            hint="if the primary has it, correct source.dsn: of several servers, target_session_attrs=read-write "
            f"chooses the one that accepts writes. Otherwise changes are lost; {GO_ON}",
        )
    if slot is None:
        raise SlotLost(
            "MISSING: the replication slot does not exist",
            hint=f"it was dropped, or the server was replaced: changes since then are lost; {GO_ON}",
        )
    if waits := not_yet(slot, server):
        raise SourceUnavailable(f"slot {slot.name} {waits}")
    for problem in slot_problems(slot, server, two_phase=two_phase):
        raise SlotLost(f"{problem.case}: slot {slot.name} {problem.seen}", hint=problem.hint)
    confirmed = slot.confirmed_flush_lsn
    assert confirmed is not None
    if opened is None:
        return confirmed
    if confirmed > through_lsn:
        raise SlotLost(
            f"AHEAD: slot {slot.name} was advanced or created again: it starts at "
            f"{lsn.show(confirmed)}, the manifest ends at {lsn.show(through_lsn)}",
            hint=f"the changes in between are lost; {GO_ON}",
        )
    if through_lsn > server.wal_end_lsn and server.in_recovery:
        raise SourceUnavailable(
            f"the manifest holds changes through {lsn.show(through_lsn)}, and this standby has replayed its log to "
            f"{lsn.show(server.wal_end_lsn)} so far",
            hint="a standby that was restarted, or is behind, gets there by itself; if this one does not, it was "
            "restored to an older state: resync the tables",
        )
    if through_lsn > server.wal_end_lsn:
        raise SlotLost(
            f"DIVERGED: the manifest holds changes through {lsn.show(through_lsn)}, this server's log "
            f"ends at {lsn.show(server.wal_end_lsn)}",
            hint="the server was restored or failed over to an older state: resync the tables",
        )
    return through_lsn


def not_yet(slot: SlotFacts, server: ServerFacts) -> str:
    """Why nobody can stream from the slot yet, in words that begin with a verb; empty for one that can be used or never
    can.
    """
    if slot.is_being_made:
        return f"is being made by process {slot.active_pid}, which waits for older transactions to end"
    if slot.synced and server.in_recovery:
        return "is kept in step with that of the primary: it can be used once this standby is promoted"
    return ""


def require_same_database(manifest: Place, here: Place) -> None:
    """Raises SlotLost, as `prove_continuity` does, unless both are of one server and one database. Pure."""
    if manifest.system_identifier != here.system_identifier:
        raise SlotLost(
            f"WRONG_CLUSTER: this server is {here.system_identifier}, the manifest was written from "
            f"{manifest.system_identifier}",
            hint="correct source.dsn; after pg_upgrade run `sluice slot recreate --upgraded`; after a "
            "restore start a new pipeline",
        )
    if manifest.database_oid != here.database_oid:
        raise SlotLost(
            f"WRONG_DATABASE: connected to {here.database} (oid {here.database_oid}), the "
            f"manifest is of {manifest.database} (oid {manifest.database_oid})",
            hint="correct the database in source.dsn; a dropped and recreated database needs a new pipeline",
        )


def _same_history(opened: Opened, through_lsn: int, server: ServerFacts) -> None:
    """The server has the log that the manifest was written from, at least through `through_lsn`: it is
    still on that timeline, or left it no earlier.
    """
    if server.forks is None:
        if opened.timeline == server.timeline:
            return
        if server.history_away:
            raise SourceUnavailable(
                f"the server is on timeline {server.timeline}, the manifest on {opened.timeline}, and the history "
                f"of its timeline could not be read: {server.history_away}"
            )
        raise SlotLost(
            f"TIMELINE: the server is on timeline {server.timeline}, the manifest on {opened.timeline}, and the "
            "server does not give the history of its timeline",
            hint="the role needs the REPLICATION attribute, and pg_wal the timeline's history file",
        )
    # A server that did not give its history when the manifest was written may give it now.
    unknown = opened.timeline != FIRST and not opened.forks
    before = tuple(fork for fork in server.forks if fork.timeline < opened.timeline) if unknown else opened.forks
    shared = len(before)
    left = server.forks[shared] if len(server.forks) > shared else None
    on = left.timeline if left is not None else server.timeline
    if server.forks[:shared] != before or on != opened.timeline:
        raise SlotLost(
            f"TIMELINE: timeline {server.timeline} of this server does not come from timeline {opened.timeline} "
            "of the server that the manifest was written from: another standby was promoted, or the server was "
            "restored",
            hint="connect to the server that took over from that one, or resync the tables",
        )
    if left is not None and left.lsn < through_lsn:
        raise SlotLost(
            f"DIVERGED: the manifest holds changes through {lsn.show(through_lsn)}, and this server left their "
            f"timeline {opened.timeline} at {lsn.show(left.lsn)}, before it had them all",
            hint="the lake may hold transactions that were lost in the failover: resync the tables",
        )


@dataclass(frozen=True, slots=True)
class SlotProblem:
    """Why a slot cannot be used: `case`, a sentence about the slot that begins with its verb, and what
    to do.
    """

    case: Literal["WRONG_PLUGIN", "WRONG_DATABASE", "INVALIDATED", "TWO_PHASE"]
    seen: str
    hint: str


def slot_problems(slot: SlotFacts, server: ServerFacts, *, two_phase: bool) -> Iterator[SlotProblem]:
    """Everything that keeps this slot from being used by a pipeline on this server, the most basic
    first; nothing for a slot that can be used. Pure.
    """
    if slot.slot_type != "logical" or slot.plugin != "pgoutput" or slot.temporary:
        kind = "temporary" if slot.temporary else slot.slot_type
        yield SlotProblem(
            "WRONG_PLUGIN",
            f"is a {kind} slot of plugin {slot.plugin or '(none)'}, not a permanent one of pgoutput",
            "name another slot in source.slot",
        )
    elif slot.database != server.database:
        yield SlotProblem(
            "WRONG_DATABASE",
            f"belongs to database {slot.database}, the connection is to {server.database}",
            "correct source.dsn or source.slot",
        )
    if slot.invalidated:
        yield SlotProblem(
            "INVALIDATED",
            f"can never be used again ({slot.invalidated})",
            f"raise max_slot_wal_keep_size or idle_replication_slot_timeout; {GO_ON}",
        )
    if slot.two_phase != two_phase:
        yield SlotProblem(
            "TWO_PHASE",
            f"has two_phase = {str(slot.two_phase).lower()}, the configuration says {str(two_phase).lower()}",
            two_phase_remedy(server.server_version, wanted=two_phase),
        )


def can_set_two_phase(server_version: int, *, wanted: bool) -> bool:
    """Whether a server of `server_version` (as libpq numbers it) can turn the flag of a slot that
    exists on, or off. (ALTER_REPLICATION_SLOT)
    """
    return server_version >= (TWO_PHASE_SINCE if wanted else TWO_PHASE_OFF_SINCE)


def two_phase_remedy(server_version: int, *, wanted: bool) -> str:
    """What makes a slot's two_phase flag what is `wanted`, on a server of this version (as libpq
    numbers it).
    """
    major = server_version // 10000
    can = can_set_two_phase(server_version, wanted=wanted)
    if wanted and not can:
        return f"PostgreSQL {major} cannot decode at PREPARE: set source.two_phase: false"
    if wanted:
        return (
            "the slot's flag decides what is sent: `sluice setup` turns it on and loses nothing, or set "
            "source.two_phase: false"
        )
    if not can:
        return f"PostgreSQL {major} cannot turn it off for a slot: set source.two_phase: true, or begin a new pipeline"
    return (
        "the slot's flag decides what is sent: `sluice setup` turns it off and loses nothing, or set "
        "source.two_phase: true"
    )
