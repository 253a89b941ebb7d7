"""From facts to one verdict: the state of the pipeline, and the list of its problems.

Invariants: a pipeline is `healthy` only when changes are known to flow and nothing is known to be
wrong. What could not be seen is `unknown` or a problem, never good. Everything that shows health
shows a Verdict and judges nothing itself. Pure.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from sluice.contract.control import REFUSAL_SECONDS
from sluice.errors import ErrorSeen
from sluice.findings import SEVERITIES, Severity
from sluice.health.facts import ApplierSeen, Away, ComparisonSeen, Facts, ProcessSeen, SourceSeen, named
from sluice.health.problems import BY_CODE, Problem
from sluice.printable import counted, one_line

State = Literal["healthy", "degraded", "stopped", "lost", "new", "unknown"]
STATES: tuple[State, ...] = ("healthy", "degraded", "stopped", "lost", "new", "unknown")
SEVERITY: tuple[State, ...] = ("lost", "stopped", "unknown", "degraded", "new", "healthy")
"""The same, the worst first."""
CARRYING: tuple[State, ...] = ("healthy", "degraded")
"""States in which changes are received."""

LOW_HEADROOM, SCARCE_HEADROOM = 0.4, 0.2
"""Shares of max_slot_wal_keep_size left; the defaults of the alerts on headroom."""
UNLIMITED_BYTES = 50 * 1024**3
"""WAL kept where there is no max_slot_wal_keep_size; the default of the alert."""
FLUSH_LAG_SECONDS, FLUSH_LAG_CRITICAL_SECONDS = 60.0, 300.0
"""The defaults of the alerts on lag."""
OUTSIDE_SHARE = 7
"""Of them, for a look from outside: more than `spool.progress_interval` is where it is not set, and what is late."""
SILENT_SECONDS = 120.0
"""An applier renews its lease every 40 s at least; three missed renewals are no delay any more."""
CHILD_START_SECONDS = 180.0
"""What Spark may take from its start to its first report."""
CLOCK_SECONDS = 60.0
NEVER_SECONDS = 600.0
FAILING_SECONDS, FAILING_CRITICAL_SECONDS = 300.0, 1800.0
LAKE_LAG_SECONDS, LAKE_LAG_CRITICAL_SECONDS = 300.0, 1800.0
"""The first is the freshness target of the alerts."""
LONG_SNAPSHOT_SECONDS = 3600.0
PREPARED_SECONDS = 900.0
REPEATED, REPEATING_SECONDS = 3, 120.0
"""An error that came this often, the last time within this time, is still going on."""
SETTLING_SECONDS = 10.0
"""How long the server may take to show a walsender that has just begun."""
UNREAD_SECONDS = 120.0
"""Ingest reads what is stored every 15 s."""
UNEXAMINED_SECONDS = 60.0
"""A look at the catalog follows each published change within seconds."""

_LEAVING = ("starting", "draining")
"""States of ingest that pass by themselves within seconds."""


def worst(states: Iterable[State]) -> State:
    """The state of several pipelines together; unknown of none."""
    return min(states, key=SEVERITY.index, default="unknown")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of a pipeline at `at`. `problems` are ordered: the most severe first."""

    state: State
    problems: tuple[Problem, ...]
    at: float

    @property
    def carrying(self) -> bool:
        """Changes are received; what `/readyz` answers."""
        return self.state in CARRYING

    @property
    def headline(self) -> str:
        """One line for people: the state, and the most severe problem with how many there are more."""
        worth = [problem for problem in self.problems if problem.severity != "info"]
        if not worth:
            snapshots = sum(problem.count for problem in self.problems if problem.code == "table.snapshot")
            return self.state + (f", {counted(snapshots, 'snapshot')} under way" if snapshots else "")
        more = f" and {len(worth) - 1} more" if len(worth) > 1 else ""
        return one_line(f"{self.state}: {worth[0].code}, {worth[0].where}{more}")

    def lines(self) -> list[str]:
        """The verdict in plain text, a line for the state and one for each problem."""
        return [
            self.state,
            *(one_line(f"{one.severity} {one.code} {one.where}: {one.message}") for one in self.problems),
        ]

    def to_json(self) -> list[dict[str, Any]]:
        """The problems; the state stands beside them under its own name."""
        return [problem.to_json(now=self.at) for problem in self.problems]


def judge(facts: Facts) -> Verdict:
    """The verdict on `facts`."""
    problems = [problem for rule in _RULES for problem in rule(facts)]
    # Stable: within a severity the order of the rules stays, which goes along the pipeline.
    problems.sort(key=lambda problem: SEVERITIES.index(problem.severity))
    return Verdict(_state(facts, problems), tuple(problems), facts.now)


def _state(facts: Facts, problems: list[Problem]) -> State:
    if facts.manifest is None:
        return "unknown"
    if facts.source is not None and facts.source.lost:
        return "lost"
    if not facts.manifest.opened:
        # Only the server can tell a pipeline that has not begun from one whose spool is gone.
        unasked = facts.process is None and facts.source_away is not None
        return "unknown" if unasked or (facts.source is not None and facts.source.gone) else "new"
    streaming = _streaming(facts)
    if streaming is None:
        return "unknown"
    if not streaming:
        return "stopped"
    return "degraded" if any(problem.severity != "info" for problem in problems) else "healthy"


def _streaming(facts: Facts) -> bool | None:
    """Whether changes are received. The process knows; seen from outside, whoever uses the slot is
    ours unless that is seen not to be. None when nobody could tell.
    """
    if facts.process is not None:
        return facts.process.streaming
    return None if facts.source is None else bool(facts.source.slot_active) and not facts.source.foreign


def _problem(
    code: str,
    severity: Severity,
    where: str,
    message: str,
    *,
    remedy: str = "",
    since: float | None = None,
    count: int = 1,
) -> Problem:
    return Problem(code, severity, where, message, remedy or BY_CODE[code].remedy, since, count)


def _spool(facts: Facts) -> Iterator[Problem]:
    away = facts.unread
    if away is not None:
        yield _away("spool.away" if away.retryable else "spool.unreadable", "the spool", away)
    elif facts.read_at is not None and _passed(facts, facts.read_at) > UNREAD_SECONDS:
        yield _problem(
            "spool.away",
            "critical",
            "the spool",
            "what is stored has not been read for minutes: the store hangs",
            since=facts.read_at,
        )


def _gone(facts: Facts) -> Iterator[Problem]:
    if facts.source is not None and facts.source.gone and facts.manifest is not None and not facts.manifest.opened:
        yield _problem("spool.gone", "critical", "the spool", facts.source.gone)


def _server(facts: Facts) -> Iterator[Problem]:
    if facts.source_away is not None:
        yield _away("server.unreachable", "the source", facts.source_away)


def _away(code: str, where: str, away: Away) -> Problem:
    return _problem(code, "critical", where, away.message, remedy=away.hint, since=away.since)


def _slot(facts: Facts) -> Iterator[Problem]:
    source, name = facts.source, _slot_name(facts)
    if source is None:
        return
    if source.lost:
        yield _problem("slot.lost", "critical", name, source.lost, remedy=source.lost_hint)
        return
    if source.wal_status == "unreserved":
        yield _problem(
            "slot.unreserved", "critical", name, "the server no longer promises to keep the WAL that the slot needs"
        )
    yield from _headroom(source, name)
    if source.foreign:
        yield _problem(
            "slot.foreign",
            "critical",
            name,
            f"the slot is in use by {source.foreign}, which is not this pipeline",
            since=source.asked_at,
        )
        return
    process = facts.process
    if process is not None and process.streaming and source.slot_active is False:
        since = process.streaming_since
        if since is None or source.asked_at - since > SETTLING_SECONDS:
            yield _problem(
                "slot.inactive",
                "critical",
                name,
                "ingest streams, but the server has no walsender for the slot",
                since=source.asked_at,
            )


def _headroom(source: SourceSeen, name: str) -> Iterator[Problem]:
    if source.unlimited_bytes is not None and source.unlimited_bytes > UNLIMITED_BYTES:
        kept = f"the server keeps {source.unlimited_bytes / 1024**3:.0f} GiB of WAL for the slot"
        yield _problem("slot.headroom", "warning", name, f"{kept}, and only the size of its disk limits that")
    share, seconds = source.share_left, source.seconds_left
    if share is None or share >= LOW_HEADROOM:
        return
    message = f"{share:.0%} of max_slot_wal_keep_size is left" + (
        f", enough for {seconds / 60:.0f} min at the present rate" if seconds is not None else ""
    )
    yield _problem("slot.headroom", "critical" if share < SCARCE_HEADROOM else "warning", name, message)


def _slot_name(facts: Facts) -> str:
    return f"slot {facts.manifest.slot}" if facts.manifest is not None and facts.manifest.slot else "the slot"


def _ingest(facts: Facts) -> Iterator[Problem]:
    manifest, process = facts.manifest, facts.process
    if process is None:
        if (
            manifest is not None
            and manifest.opened
            and facts.source is not None
            and not facts.source.lost
            and not _streaming(facts)
        ):
            message = "another client has the slot" if facts.source.foreign else "no process streams from the slot"
            yield _problem(
                "ingest.stopped",
                "critical",
                _slot_name(facts),
                f"{message}: ingest does not run",
                since=manifest.written_at,
            )
        return
    yield from _process(facts, process)


def _process(facts: Facts, process: ProcessSeen) -> Iterator[Problem]:
    if not process.streaming:
        words = process.state if process.state != "streaming" else "not connected"
        since = facts.manifest.written_at if facts.manifest is not None else None
        severity: Severity = "warning" if process.state in _LEAVING else "critical"
        yield _problem("ingest.stopped", severity, "ingest", f"ingest does not stream: it is {words}", since=since)
    for sentence in process.stuck:
        yield _problem("ingest.stuck", "critical", "ingest", sentence)
    yield from _waiting(facts, process)
    yield from _errors(facts, process)


def _waiting(facts: Facts, process: ProcessSeen) -> Iterator[Problem]:
    if process.snapshots_wait:
        since = process.snapshots_wait_since
        long = since is not None and facts.now - since > LONG_SNAPSHOT_SECONDS
        held = "; the snapshot that is held keeps VACUUM from removing rows" if process.snapshot_is_held else ""
        message = f"snapshots wait: {process.snapshots_wait}{held}"
        yield _problem("snapshot.waiting", "warning" if long else "info", "snapshots", message, since=since)


def _errors(facts: Facts, process: ProcessSeen) -> Iterator[Problem]:
    for one in process.errors:
        going_on = one.count >= REPEATED and facts.now - one.last_at <= REPEATING_SECONDS
        yield _problem(
            "ingest.error",
            "warning" if going_on else "info",
            one.where,
            _said(one),
            remedy=one.hint,
            since=one.first_at,
            count=one.count,
        )


def _said(one: ErrorSeen) -> str:
    return f"{one.error}: {one.message}" if one.message else one.error


def _lag(facts: Facts) -> Iterator[Problem]:
    lag = facts.flush_lag_seconds or 0.0
    # A pipeline that does not stream is behind in any case, and has a problem that says why.
    # From outside nobody can tell the WAL of others, which ingest confirms every spool.progress_interval only.
    share = 1 if facts.process is not None else OUTSIDE_SHARE
    if lag > share * FLUSH_LAG_SECONDS and _streaming(facts):
        severity: Severity = "critical" if lag > share * FLUSH_LAG_CRITICAL_SECONDS else "warning"
        yield _problem(
            "ingest.behind", severity, "ingest", f"the spool is {lag:.0f} s behind the source", since=facts.now - lag
        )


def _catalog(facts: Facts) -> Iterator[Problem]:
    since = facts.manifest.unexamined_since if facts.manifest is not None else None
    if since is not None and (passed := _passed(facts, since)) > UNEXAMINED_SECONDS and _streaming(facts):
        for_long = f" for {passed:.0f} s" if math.isfinite(passed) else ""
        message = f"the catalog could not be examined{for_long}, so no position becomes complete"
        yield _problem("catalog.unexamined", "warning", "the catalog", message, since=since)


def _passed(facts: Facts, since: float) -> float:
    """Seconds since then. Without an end where a clock that was ahead has said when: nobody knows that it is recent."""
    return facts.now - since if since - facts.now <= CLOCK_SECONDS else math.inf


def _prepared(facts: Facts) -> Iterator[Problem]:
    at = facts.manifest.prepared_at if facts.manifest is not None else None
    if at is not None and facts.now - at > PREPARED_SECONDS:
        yield _problem(
            "prepared.open",
            "warning",
            "a prepared transaction",
            "a prepared transaction has been open for a long time",
            since=at,
        )


def _applier(facts: Facts) -> Iterator[Problem]:
    if not any(group.state.needs_applier for group in facts.tables):
        return
    seen, child = facts.applier, facts.process.applier if facts.process is not None else None
    starting = (
        child is not None
        and child.running
        and child.started_at is not None
        and facts.now - child.started_at < CHILD_START_SECONDS
    )
    # By the time of the look: while the store is away, no record can be read, whatever the applier
    # does.
    silent = None if seen.record_at is None else (facts.read_at or facts.now) - seen.record_at
    if child is not None and not child.running:
        yield _problem(
            "applier.dead", "critical", "the applier", _waits("the applier is not running", seen), since=seen.record_at
        )
    elif starting and (silent is None or silent > SILENT_SECONDS):
        return
    elif seen.record_at is None:
        opened_at = facts.manifest.opened_at if facts.manifest is not None else None
        waited = _passed(facts, opened_at) if opened_at is not None else NEVER_SECONDS
        yield _problem(
            "applier.never",
            "critical" if waited > NEVER_SECONDS else "warning" if waited > CHILD_START_SECONDS else "info",
            "the applier",
            "no applier has worked on this pipeline yet",
            since=opened_at,
        )
    elif silent is not None and silent > SILENT_SECONDS:
        yield _problem(
            "applier.dead",
            "critical",
            "the applier",
            _waits("the applier has stopped reporting", seen),
            since=seen.record_at,
        )
    else:
        if (
            child is not None
            and child.instance_prefix
            and not starting
            and not seen.instance.startswith(child.instance_prefix)
        ):
            yield _problem(
                "applier.other",
                "critical",
                f"applier {seen.instance}",
                "another applier than the one that runs here works on this pipeline",
            )
        yield from _failing(facts, seen)


def _waits(what: str, seen: ApplierSeen) -> str:
    entries = counted(seen.pending, "manifest entry", "manifest entries")
    return f"{what}, with {entries} to apply" if seen.pending else what


def _failing(facts: Facts, seen: ApplierSeen) -> Iterator[Problem]:
    since = seen.started_at if seen.succeeded_at is None else seen.succeeded_at
    idle = None if since is None else (facts.read_at or facts.now) - since
    if idle is not None and idle > FAILING_SECONDS:
        severity: Severity = "critical" if idle > FAILING_CRITICAL_SECONDS else "warning"
        yield _problem(
            "applier.failing",
            severity,
            "the applier",
            "it has neither committed a window nor found that there is nothing to do",
            since=since,
        )


def _clock(facts: Facts) -> Iterator[Problem]:
    ahead = facts.applier.ahead_seconds
    if ahead > CLOCK_SECONDS:
        yield _problem(
            "applier.clock",
            "warning",
            "the applier",
            f"its newest record is {ahead:.0f} s ahead of the clock of this machine",
        )


def _upkeep(facts: Facts) -> Iterator[Problem]:
    seen = facts.applier
    if seen.upkeep_failing:
        yield _problem(
            "spool.upkeep",
            "warning",
            "the spool",
            f"the applier cannot archive or prune it: {seen.upkeep_failing}",
            since=seen.upkeep_failing_since,
        )


def _lake(facts: Facts) -> Iterator[Problem]:
    lag = facts.lake_lag_seconds
    if lag is not None and lag > LAKE_LAG_SECONDS:
        severity: Severity = "critical" if lag > LAKE_LAG_CRITICAL_SECONDS else "warning"
        yield _problem(
            "lake.behind",
            severity,
            "the lake",
            f"the oldest change that the lake lacks is {lag:.0f} s old",
            since=facts.now - lag,
        )


def _tables(facts: Facts) -> Iterator[Problem]:
    for group in facts.tables:
        if group.failing or group.state.is_problem:
            code = "table.failing" if group.failing else f"table.{group.state}"
            long = group.since is not None and facts.now - group.since > LONG_SNAPSHOT_SECONDS
            under_way: Severity = "warning" if long else "info"
            severity = under_way if code in ("table.snapshot", "table.pending") else BY_CODE[code].severities[0]
            yield _problem(
                code,
                severity,
                group.names,
                group.reason or f"the table's state is {group.state}",
                since=group.since,
                count=group.count,
            )


def _remarks(facts: Facts) -> Iterator[Problem]:
    for code, groups in (
        ("table.maintenance", facts.maintenance),
        ("table.catalog", facts.unnamed),
        ("publication.operations", facts.not_sent),
        ("table.path", facts.displaced),
    ):
        for group in groups:
            yield _problem(code, BY_CODE[code].severities[0], group.names, group.reason, count=group.count)


def _configuration(facts: Facts) -> Iterator[Problem]:
    process, applier = facts.process, facts.applier
    if process is not None and process.configuration_refused:
        at = process.configuration_refused_at
        yield _problem("configuration.refused", "warning", "ingest", process.configuration_refused, since=at)
    if applier.configuration_refused:
        yield _problem("configuration.refused", "warning", "the applier", applier.configuration_refused)


def _refusals(facts: Facts) -> Iterator[Problem]:
    for one in facts.refusals:
        if facts.now - one.refused_at <= REFUSAL_SECONDS:
            yield _problem("request.refused", "warning", one.table, one.reason, remedy=one.hint, since=one.refused_at)


def _comparisons(facts: Facts) -> Iterator[Problem]:
    if facts.comparisons_unread:
        yield _problem("verify.unreadable", "critical", "the results of comparisons", facts.comparisons_unread)
    different = [one for one in facts.comparisons if one.differences]
    count = sum(one.differences for one in different)
    yield from _compared(
        "verify.different",
        "critical",
        different,
        f"a comparison found that the lake differs from the source: {counted(count, 'row')} in "
        f"{counted(len(different), 'table')}",
    )
    late = [one for one in facts.comparisons if one.late_at is not None and one.late_at < facts.now]
    why = next((f"; {one.reason}" for one in late if one.reason), "")
    yield from _compared(
        "verify.late",
        "warning",
        late,
        f"tables should have been compared, and were not found equal for three intervals{why}",
    )


def _compared(code: str, severity: Severity, found: list[ComparisonSeen], message: str) -> Iterator[Problem]:
    if found:
        names, since = named([one.table for one in found]), min(one.at for one in found)
        yield _problem(code, severity, names, message, since=since, count=len(found))


_RULES: tuple[Callable[[Facts], Iterator[Problem]], ...] = (
    _slot, _spool, _gone, _server, _ingest, _lag, _catalog, _prepared, _applier, _clock, _upkeep, _lake, _tables,
    _remarks, _configuration, _refusals, _comparisons,
)  # fmt: skip
