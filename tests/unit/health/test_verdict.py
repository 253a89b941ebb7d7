"""One verdict for every combination of dead parts: every surface shows the same state and problems."""

import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from sluice.cli import exits, status, status_view
from sluice.contract.table_state import State
from sluice.errors import SlotLost, StoreUnavailable
from sluice.findings import SEVERITIES
from sluice.health.export.verdict import export_verdict
from sluice.health.facts import (
    ApplierSeen,
    Away,
    ChildSeen,
    Facts,
    ManifestSeen,
    ProcessSeen,
    RefusalSeen,
    SourceSeen,
    TableGroup,
    TableSeen,
    grouped,
)
from sluice.health.problems import BY_CODE, Problem
from sluice.health.process_facts import ProcessFacts
from sluice.health.report import Report
from sluice.health.verdict import CARRYING, STATES, UNLIMITED_BYTES, Verdict, judge
from sluice.manifest.values import PipelineState
from sluice.settings.spool import SpoolSettings
from sluice.telemetry import catalogue
from sluice.telemetry.metrics import Metrics
from tests.support.answers import ask, serving
from tests.support.extent import FULL
from tests.support.recorded import NOW, RecordedPipeline
from tests.support.source_facts import server, slot

AT = NOW.timestamp()
WELL_SOURCE = SourceSeen(asked_at=AT, slot_active=True, wal_status="reserved", share_left=0.9)
WELL_MANIFEST = ManifestSeen(opened=True, slot="sluice_shop", opened_at=AT - 9000)
WELL_PROCESS = ProcessSeen("streaming", True, streaming_since=AT - 9000)
WELL_APPLIER = ApplierSeen(AT - 5, "host/1/a", AT - 5, pending=3)
WELL = Facts(
    now=AT,
    read_at=AT,
    manifest=WELL_MANIFEST,
    source=WELL_SOURCE,
    process=WELL_PROCESS,
    applier=WELL_APPLIER,
    flush_lag_seconds=1.0,
    lake_lag_seconds=2.0,
    tables=(TableGroup(State.LIVE, "", "public.orders", 1, AT - 9000),),
)
AWAY = Away("SourceUnavailable", "no answer", "look at it", retryable=True)

# Each part's states: what it changes in the facts, and what the verdict must say because of it.
Part = dict[str, tuple[dict[str, Any], str | None]]
SOURCES: Part = {
    "slot well": ({}, None),
    "server unreachable": ({"source": None, "source_away": AWAY}, "server.unreachable"),
    "slot lost": ({"source": replace(WELL_SOURCE, slot_active=None, lost="MISSING: gone")}, "slot.lost"),
    "slot inactive": ({"source": replace(WELL_SOURCE, slot_active=False)}, "slot inactive"),
}
INGESTS: Part = {
    "ingest streams": ({}, None),
    "ingest not asked": ({"process": None}, None),
    "ingest reconnects": ({"process": ProcessSeen("reconnecting", False)}, "ingest.stopped"),
    "stage stuck": ({"process": replace(WELL_PROCESS, stuck=("the decoder has not moved for 400 s",))}, "ingest.stuck"),
}
APPLIERS: Part = {
    "applier well": ({}, None),
    "applier never ran": ({"applier": ApplierSeen()}, "applier.never"),
    "applier's report is old": ({"applier": replace(WELL_APPLIER, record_at=AT - 600)}, "applier.dead"),
    "applier achieves nothing": ({"applier": replace(WELL_APPLIER, succeeded_at=AT - 600)}, "applier.failing"),
}
STORES: Part = {
    "store well": ({}, None),
    "store away": ({"unread": replace(AWAY, message="the store does not answer")}, "spool.away"),
    "nothing was ever read": (
        {"manifest": None, "read_at": None, "unread": AWAY, "tables": (), "applier": ApplierSeen()},
        "spool.away",
    ),
}
ODD = grouped([TableSeen("public.odd", State.QUARANTINED, "no key")])
TABLES: Part = {
    "tables live": ({}, None),
    "one stale": ({"tables": grouped([TableSeen("public.stock", State.STALE, "rewritten")])}, "table.stale"),
    "one quarantined": ({"tables": (*WELL.tables, *ODD)}, "table.quarantined"),
    "a snapshot for hours": ({"tables": grouped([TableSeen("b", State.SNAPSHOT, "", AT - 9999)])}, "table.snapshot"),
}
MANIFESTS: Part = {
    "manifest known": ({}, None),
    "manifest new": ({"manifest": ManifestSeen(opened=False), "tables": (), "applier": ApplierSeen()}, None),
}
PARTS = (SOURCES, INGESTS, APPLIERS, TABLES, MANIFESTS, STORES)
COMBINATIONS = list(itertools.product(*PARTS))


def facts_of(names: tuple[str, ...]) -> Facts:
    changes: dict[str, Any] = {}
    for part, name in zip(PARTS, names, strict=True):
        changes |= part[name][0]
    return replace(WELL, **changes)


def expected(names: tuple[str, ...]) -> tuple[str, set[str]]:
    """The state and the codes by what is dead, said anew and in other words than the verdict's own."""
    source, ingest, applier, tables, manifest, store = names
    new, unread = manifest == "manifest new", store == "nothing was ever read"
    found = [INGESTS[ingest][1], STORES[store][1]]
    if source != "slot inactive":
        found.append(SOURCES[source][1])
    elif ingest in ("ingest streams", "stage stuck"):
        found.append("slot.inactive")
    elif ingest == "ingest not asked" and not new and not unread:
        found.append("ingest.stopped")
    if not new and not unread:
        found += [TABLES[tables][1], APPLIERS[applier][1]]
    codes = {code for code in found if code}
    streams = {"ingest streams": True, "stage stuck": True, "ingest reconnects": False}.get(
        ingest, {"slot well": True, "server unreachable": None}.get(source, False)
    )
    if unread:
        return "unknown", codes
    if source == "slot lost":
        return "lost", codes
    if new:
        return ("unknown" if (source, ingest) == ("server unreachable", "ingest not asked") else "new"), codes
    if streams is None:
        return "unknown", codes
    return ("stopped" if not streams else "degraded" if codes else "healthy"), codes


def test_every_combination_of_dead_parts_has_the_state_and_the_problems_that_it_must_have() -> None:
    wrong = []
    for names in COMBINATIONS:
        verdict = judge(facts_of(names))
        found = (verdict.state, {problem.code for problem in verdict.problems})
        if found != expected(names):
            wrong.append((names, found, expected(names)))
    assert wrong == []
    assert {expected(names)[0] for names in COMBINATIONS} == set(STATES), "each state is reached"
    assert [names for names in COMBINATIONS if expected(names)[0] == "healthy"] == [
        ("slot well", ingest, "applier well", "tables live", "manifest known", "store well")
        for ingest in ("ingest streams", "ingest not asked")
    ], "healthy means that nothing at all is wrong"


class Shown:
    def __init__(self) -> None:
        self.verdict, self.status, self.address = judge(WELL), dict[str, Any](), ""
        self.metrics = Metrics("shop")

    def get(self, path: str) -> tuple[int, str]:
        return ask(self.address, path)

    def agree(self, report: Report) -> None:
        """Raises AssertionError unless every surface says what the verdict says."""
        verdict = self.verdict = report.verdict
        codes = sorted(problem.code for problem in verdict.problems)
        self.status = json.loads(json.dumps(report.to_json()))
        served, tables = json.loads(self.get("/status")[1]), report.tables_json()
        assert (served["state"], sorted(one["code"] for one in served["problems"])) == (verdict.state, codes)
        assert (tables["state"], tables["problems"]) == (served["state"], served["problems"])
        out = Console(file=io.StringIO(), width=10_000, highlight=False, record=True)
        out.print(status_view.status(report, width=10_000, unicode=True, top=20))
        text = out.export_text()
        assert f"State     {verdict.state}" in text
        assert sorted(line.split()[1] for line in text.splitlines() if line.split(" ")[0] in SEVERITIES) == codes
        code, ready = self.get("/readyz")
        assert (code == 200, ready.splitlines()[0]) == (verdict.state in CARRYING, verdict.state)
        assert sorted(line.split()[1] for line in ready.splitlines()[1:]) == codes
        export_verdict(self.metrics, verdict)
        assert exported(self.metrics) == (verdict.state, set(codes))
        assert (exits.HEALTH[verdict.state] == 0) == (verdict.state == "healthy")
        assert status.verdict_of(report) == verdict


def exported(metrics: Metrics) -> tuple[str, set[str]]:
    metrics._rendered = None
    values = dict(
        line.rsplit(" ", 1)
        for line in metrics.render().decode().splitlines()
        if line.startswith(("sluice_health{", "sluice_problems{"))
    )
    on = [name for name, value in values.items() if float(value) > 0]
    (state,) = [name.split('state="')[1].split('"')[0] for name in on if name.startswith("sluice_health")]
    return state, {name.split('code="')[1].split('"')[0] for name in on if name.startswith("sluice_problems")}


@pytest.fixture
def shown() -> Iterator[Shown]:
    surfaces = Shown()
    with serving(status=lambda: surfaces.status, verdict=lambda: surfaces.verdict) as (surfaces.address, _):
        yield surfaces


def reports() -> Iterator[Report]:
    """The same dead parts as reports: what each look found, in every combination."""
    pipeline = RecordedPipeline()
    pipeline.table("orders")
    pipeline.applied("orders", through_seq=pipeline.log.state.seq, complete_through_lsn=100)
    well = replace(pipeline.report(), server=server(1000), slot=slot(restart=200, safe=9999))
    (table,), applied = well.tables, well.applied
    assert applied is not None
    inactive = replace(slot(restart=200, safe=9999), active_pid=None)
    sources: list[dict[str, Any]] = [
        {},
        {"server": None, "slot": None, "source_away": AWAY},
        {"slot": None, "lost": SlotLost("MISSING: gone", hint="")},
        {"slot": inactive},
    ]
    old = replace(applied, written_at=(NOW - timedelta(seconds=600)).isoformat())
    lakes: list[dict[str, Any]] = [{}, {"applied": None}, {"applied": old}]
    stores: list[dict[str, Any]] = [{}, {"unread": AWAY}]
    states = (State.STALE, State.QUARANTINED, State.SNAPSHOT)
    tables = [{}, *({"tables": (replace(table, state=state, reason="because"),)} for state in states)]
    manifests = [{}, {"manifest": PipelineState(), "tables": (), "applied": None, "complete": None}]
    for changes in itertools.product(sources, processes(), lakes, stores, tables, manifests):
        merged: dict[str, Any] = dict(itertools.chain.from_iterable(change.items() for change in changes))
        yield replace(well, **merged)


def processes() -> list[dict[str, Any]]:
    child = ChildSeen(running=False, restarts=2)
    seen = (
        ProcessSeen("streaming", True, AT - 9000),
        ProcessSeen("reconnecting", False),
        ProcessSeen("streaming", True, AT - 9000, stuck=("x",)),
        ProcessSeen("streaming", True, AT - 9000, applier=child),
    )
    return [{"process": None}, *({"process": ProcessFacts(one, NOW, "i", 0, 900, 900, None, None, ())} for one in seen)]


EACH = 1 if FULL else 7
"""Seven and the number of a part's states have no divisor in common: each state meets all those of each other part."""


def test_all_surfaces_show_the_same_verdict_whatever_is_dead(shown: Shown) -> None:
    every = list(reports())
    assert len(every) == 4 * 5 * 3 * 2 * 4 * 2
    for report in every[::EACH]:
        shown.agree(report)


def test_a_store_that_does_not_answer_is_unknown_on_every_surface(shown: Shown) -> None:
    away = StoreUnavailable("s3://bucket did not answer", hint="look at the network")
    verdict = status.verdict_of(away)
    (problem,) = verdict.problems
    assert (verdict.state, problem.code, problem.message) == ("unknown", "spool.away", "s3://bucket did not answer")
    assert problem.remedy == "look at the network"
    assert exits.HEALTH[verdict.state] not in (0, exits.HEALTH["healthy"])


def codes(facts: Facts) -> dict[str, Problem]:
    return {problem.code: problem for problem in judge(facts).problems}


def test_an_applier_is_not_called_dead_because_its_records_cannot_be_read() -> None:
    hours_later = replace(WELL, now=AT + 7200, unread=AWAY)
    assert set(codes(hours_later)) == {"spool.away"}


def test_a_store_that_hangs_is_a_problem_although_no_error_came() -> None:
    assert codes(replace(WELL, now=AT + 121))["spool.away"].since == AT
    assert codes(replace(WELL, now=AT + 60)) == {}


def test_an_applier_that_up_started_a_moment_ago_may_start() -> None:
    old = replace(WELL_APPLIER, record_at=AT - 86_400, instance="host/9/b")
    child = ChildSeen(running=True, restarts=0, instance_prefix="host/1/", started_at=AT - 20)
    process = replace(WELL_PROCESS, applier=child)
    assert codes(replace(WELL, applier=old, process=process)) == {}
    late = replace(WELL_PROCESS, applier=replace(child, started_at=AT - 400))
    assert set(codes(replace(WELL, applier=old, process=late))) == {"applier.dead"}
    assert codes(replace(WELL, process=late)) == {}


def test_records_of_another_applier_than_the_one_that_runs_here_are_a_problem() -> None:
    child = ChildSeen(running=True, restarts=0, instance_prefix="host/77/", started_at=AT - 400)
    process = replace(WELL_PROCESS, applier=child)
    assert "host/1/a" in codes(replace(WELL, process=process))["applier.other"].where


def test_an_applier_that_does_not_run_is_dead_at_once_although_its_record_is_fresh() -> None:
    process = replace(WELL_PROCESS, applier=ChildSeen(running=False, restarts=3))
    message = "the applier is not running, with 3 manifest entries to apply"
    assert codes(replace(WELL, process=process))["applier.dead"].message == message


def test_a_slot_is_not_called_inactive_by_a_look_from_before_the_stream_began() -> None:
    source = replace(WELL_SOURCE, slot_active=False)
    begun = replace(WELL_PROCESS, streaming_since=AT - 3)
    assert codes(replace(WELL, source=source, process=begun)) == {}
    assert set(codes(replace(WELL, source=source))) == {"slot.inactive"}


@pytest.mark.parametrize(
    ("share", "seconds", "severity"),
    [
        (0.5, 60.0, None),
        (0.39, None, "warning"),
        (0.39, 3600.0, "warning"),
        (0.19, None, "critical"),
        (0.0, 0.0, "critical"),
    ],
)
def test_headroom_is_judged_by_what_is_left(share: float, seconds: float | None, severity: str | None) -> None:
    found = codes(replace(WELL, source=replace(WELL_SOURCE, share_left=share, seconds_left=seconds)))
    assert (found["slot.headroom"].severity if found else None) == severity


def test_a_slot_that_can_fill_the_disk_of_its_server_is_no_healthy_pipeline() -> None:
    for kept, expected in ((UNLIMITED_BYTES, set()), (UNLIMITED_BYTES + 1, {"slot.headroom"})):
        source = replace(WELL_SOURCE, share_left=None, unlimited_bytes=kept)
        assert set(codes(replace(WELL, source=source))) == expected


OPENED_LONG_AGO = replace(WELL_MANIFEST, opened_at=AT - 181)
WAITS: dict[str, Any] = {"snapshots_wait": "busy", "snapshots_wait_since": AT - 3601}
TAKEN = replace(WELL_SOURCE, foreign="process 7 (application_name pg_recvlogical)")


@pytest.mark.parametrize(
    ("changes", "code", "severity"),
    [
        ({"flush_lag_seconds": 61.0}, "ingest.behind", "warning"),
        ({"flush_lag_seconds": 301.0}, "ingest.behind", "critical"),
        ({"lake_lag_seconds": 301.0}, "lake.behind", "warning"),
        ({"lake_lag_seconds": 1801.0}, "lake.behind", "critical"),
        ({"manifest": replace(WELL_MANIFEST, prepared_at=AT - 901)}, "prepared.open", "warning"),
        ({"source": replace(WELL_SOURCE, wal_status="unreserved")}, "slot.unreserved", "critical"),
        ({"process": replace(WELL_PROCESS, **WAITS)}, "snapshot.waiting", "warning"),
        ({"unread": replace(AWAY, retryable=False)}, "spool.unreadable", "critical"),
        ({"refusals": (RefusalSeen("public.typo", "unknown", "publish it", AT),)}, "request.refused", "warning"),
        ({"tables": (TableGroup(State.LIVE, "failed", "a", 1, None, failing=True),)}, "table.failing", "warning"),
        ({"tables": (TableGroup(State.SNAPSHOT, "failed", "a", 1, AT - 5, failing=True),)}, "table.failing", "warning"),
        ({"applier": replace(WELL_APPLIER, succeeded_at=None, started_at=AT - 301)}, "applier.failing", "warning"),
        ({"applier": replace(WELL_APPLIER, ahead_seconds=61.0)}, "applier.clock", "warning"),
        ({"applier": replace(WELL_APPLIER, upkeep_failing="AccessDenied")}, "spool.upkeep", "warning"),
        ({"comparisons_unread": "verify/log/1.json: denied"}, "verify.unreadable", "critical"),
        ({"displaced": grouped([TableSeen("public.a", State.LIVE, "at public/a~t7")])}, "table.path", "warning"),
        ({"source": TAKEN}, "slot.foreign", "critical"),
        ({"applier": ApplierSeen(), "manifest": OPENED_LONG_AGO}, "applier.never", "warning"),
        ({"applier": ApplierSeen()}, "applier.never", "critical"),
    ],
)
def test_what_is_late_or_refused_degrades_the_pipeline(changes: dict[str, Any], code: str, severity: str) -> None:
    verdict: Verdict = judge(replace(WELL, **changes))
    assert (verdict.state, [(one.code, one.severity) for one in verdict.problems]) == ("degraded", [(code, severity)])
    assert verdict.problems[0].remedy


def test_a_slot_that_another_client_uses_is_no_sign_of_ingest() -> None:
    verdict = judge(replace(WELL, process=None, source=TAKEN))
    assert (verdict.state, [one.code for one in verdict.problems]) == ("stopped", ["slot.foreign", "ingest.stopped"])


def test_an_empty_spool_under_a_slot_that_has_served_is_gone_and_not_new() -> None:
    gone = replace(WELL_SOURCE, gone="slot s has served a pipeline, and the spool has no manifest of it")
    new = replace(WELL, manifest=ManifestSeen(opened=False), tables=(), applier=ApplierSeen())
    verdict = judge(replace(new, process=None, source=gone))
    found = [(one.code, one.severity) for one in verdict.problems]
    assert (verdict.state, found) == ("unknown", [("spool.gone", "critical")])


def test_a_table_that_lives_with_a_remark_is_not_failing() -> None:
    remark = TableGroup(State.LIVE, "no key: an append-only changelog", "public.log", 1, None)
    assert codes(replace(WELL, tables=(remark,))) == {}


def test_information_leaves_a_pipeline_healthy() -> None:
    verdict = judge(replace(WELL, tables=(*WELL.tables, TableGroup(State.SNAPSHOT, "", "public.new", 1, AT - 60))))
    assert (verdict.state, verdict.headline) == ("healthy", "healthy, 1 snapshot under way")
    assert [(one.code, one.severity) for one in verdict.problems] == [("table.snapshot", "info")]


def test_a_table_that_the_source_no_longer_publishes_is_named_with_since_when() -> None:
    left = TableSeen("archive.orders", State.DETACHED, "publication p no longer carries it", AT - 60)
    verdict = judge(replace(WELL, tables=(*WELL.tables, *grouped([left]))))
    found = [(one.code, one.severity, one.where, one.since) for one in verdict.problems]
    assert (verdict.state, found) == ("healthy", [("table.detached", "info", "archive.orders", AT - 60)])


def test_a_problem_without_a_documented_code_cannot_be_made() -> None:
    with pytest.raises(KeyError):
        Problem("no.such", "info", "x", "y", "z")
    with pytest.raises(ValueError, match="never info"):
        Problem("table.stale", "info", "x", "y", "z")


def test_the_labels_of_the_metrics_are_the_states_and_codes_of_the_verdict() -> None:
    assert catalogue.HEALTH_STATES == STATES
    assert tuple(BY_CODE) == catalogue.PROBLEM_CODES


LATER = AT + 36_000
DATED_AHEAD: dict[str, tuple[dict[str, Any], str]] = {
    "applier never ran": (
        {"applier": ApplierSeen(), "manifest": replace(WELL_MANIFEST, opened_at=LATER)},
        "applier.never",
    ),
    "catalog not examined": ({"manifest": replace(WELL_MANIFEST, unexamined_since=LATER)}, "catalog.unexamined"),
    "store not read": ({"read_at": LATER}, "spool.away"),
}


@pytest.mark.parametrize(("found", "code"), DATED_AHEAD.values(), ids=DATED_AHEAD.keys())
def test_what_a_clock_that_was_ahead_has_dated_is_not_taken_for_recent(found: dict[str, Any], code: str) -> None:
    verdict = judge(replace(WELL, **found))
    assert (verdict.state, verdict.problems[0].code) == ("degraded", code)
    assert "inf" not in verdict.problems[0].message


@pytest.mark.parametrize(
    ("behind", "streaming", "codes"), [(61, True, ["catalog.unexamined"]), (59, True, []), (61, False, [])]
)
def test_what_no_look_has_examined_for_a_minute_is_a_problem_while_changes_flow(
    behind: int, streaming: bool, codes: list[str]
) -> None:
    manifest = replace(WELL_MANIFEST, unexamined_since=AT - behind)
    process = WELL_PROCESS if streaming else ProcessSeen("reconnecting", False)
    found = judge(replace(WELL, manifest=manifest, process=process)).problems
    assert [problem.code for problem in found if problem.code == "catalog.unexamined"] == codes


@pytest.mark.parametrize("spool", ["s3://bucket/spool", "file:///spool"])
def test_the_log_of_others_between_two_advances_is_no_lag_of_the_pipeline(spool: str) -> None:
    """Nobody can tell it from changes of the pipeline from outside, and an advance may be ten seconds late."""
    seconds = SpoolSettings.model_validate({"uri": spool}).advance_interval + 10
    assert "ingest.behind" not in codes(replace(WELL, process=None, flush_lag_seconds=seconds))
