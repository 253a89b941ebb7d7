"""The report: the worse of the two sides, never further than the applier has stated, lag that means something."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from sluice.contract import keys
from sluice.contract.applied import CATALOG, AppliedLog, Complete, Maintenance, MaintenanceRun
from sluice.contract.catalog_names import CatalogNames
from sluice.contract.entries import Progress
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.lease import Holder, Process, Sign
from sluice.contract.reasons import Reason, ReasonCode
from sluice.errors import ManifestCorrupt
from sluice.health.continuity import check_holds
from sluice.health.report import Report
from sluice.health.reporter import Reporter
from sluice.manifest.values import PipelineState
from sluice.store.memory import MemoryStore
from tests.support.manifests import put
from tests.support.recorded import NOW, RecordedPipeline, row, rows
from tests.support.stores import WatchedStore


@pytest.fixture
def pipeline() -> RecordedPipeline:
    return RecordedPipeline()


def of_tables(pipeline: RecordedPipeline, *, names: CatalogNames | None = None) -> list[tuple[str, str, str]]:
    problems = pipeline.report(names=names).verdict.problems
    return [(one.code, one.severity, one.message) for one in problems if one.part == "tables"]


def test_an_empty_store_is_a_new_pipeline() -> None:
    store = MemoryStore("report-empty", prefix="shop/")
    report = Reporter(pipeline="shop", store=store, lake_uri="file:///lake", source=None).take()
    assert report.verdict.state == "new"
    assert report.tables_json() == {"schema_version": 1, "state": "new", "problems": [], "tables": []}


@pytest.mark.parametrize(
    ("ingest", "applier", "shown", "reason"),
    [
        ("live", "live", "live", ""),
        ("live", "stale", "stale", "said by the applier"),
        ("stale", "live", "stale", "said by ingest"),
        ("live", "snapshot", "snapshot", ""),
    ],
)
def test_the_worse_of_the_two_sides_is_shown_with_its_reason(
    pipeline: RecordedPipeline, ingest: str, applier: str, shown: str, reason: str
) -> None:
    pipeline.table("orders", state=ingest, reason="said by ingest" if ingest == "stale" else "")
    pipeline.applied("orders", state=applier, reason=reason if applier == "stale" else "", complete_through_lsn=100)
    table = pipeline.report().tables[0]
    assert (table.state, table.reason) == (shown, reason)


def test_of_many_tables_with_one_problem_each_is_in_the_document_by_name(pipeline: RecordedPipeline) -> None:
    """Where they are one problem, that names three."""
    names = {f"t{number}" for number in range(150)}
    for name in names:
        pipeline.table(name, state="quarantined", reason="the server refuses it")
    for document in (pipeline.report().to_json(), pipeline.report().tables_json()):
        (problem,) = [one for one in document["problems"] if one["code"] == "table.quarantined"]
        assert (problem["count"], problem["where"].endswith(" and 147 more")) == (150, True)
        said = {one["table"]: (one["state"], one["reason"]) for one in document["tables"]}
        assert said == dict.fromkeys(names, ("quarantined", "the server refuses it"))


def test_a_table_the_applier_has_not_taken_is_not_live(pipeline: RecordedPipeline) -> None:
    pipeline.table("orders")
    table = pipeline.report().tables[0]
    assert (table.state, table.to_json()["complete_through_lsn"], table.lag_seconds) == ("snapshot", None, None)


def test_what_the_applier_said_of_an_older_generation_no_longer_counts(pipeline: RecordedPipeline) -> None:
    pipeline.table("orders")
    pipeline.applied("orders", complete_through_lsn=100, rows_applied=5)
    pipeline.table("orders", state="snapshot", generation=2)
    table = pipeline.report().tables[0]
    assert (table.state, table.complete_through_lsn, table.rows_applied) == ("snapshot", 0, 0)


def test_a_name_in_the_catalog_is_shown_with_why_it_is_not_as_it_should_be(pipeline: RecordedPipeline) -> None:
    names = CatalogNames("{pipeline}.{target}", "shop")
    pipeline.table("orders")
    at = "2026-01-01T00:00:00+00:00"
    record = Maintenance(runs={CATALOG: MaintenanceRun(at, 0.1)})
    pipeline.applied("orders", complete_through_lsn=100, maintenance=record)
    report = pipeline.report(names=names)
    table = report.tables[0].to_json()
    assert table["catalog"] == {"name": "shop.orders", "registered_at": at, "failing": ""}
    assert CATALOG not in table["maintenance"]["runs"]
    failing = record.failing_at(CATALOG, "the metastore refuses", at=0.0)
    assert failing.failing_at(CATALOG, "the metastore refuses", at=1000.0) == failing
    pipeline.applied("orders", complete_through_lsn=100, maintenance=failing)
    message = "shop.orders: since 1970-01-01T00:00Z: the metastore refuses"
    assert of_tables(pipeline, names=names) == [("table.catalog", "warning", message)]
    assert pipeline.report().tables[0].to_json()["catalog"] is None


@pytest.mark.parametrize("state", ["live", "snapshot"])
def test_a_table_that_the_applier_fails_on_is_failing_in_whatever_state_it_is(
    pipeline: RecordedPipeline, state: str
) -> None:
    pipeline.table("orders")
    pipeline.applied("orders", state=state, reason="attempt 4 failed: StoreRefused: AccessDenied", failing=True)
    assert of_tables(pipeline) == [("table.failing", "warning", "attempt 4 failed: StoreRefused: AccessDenied")]


def test_a_snapshot_that_waits_for_what_the_server_lacks_is_failing_in_what_is_stored(
    pipeline: RecordedPipeline,
) -> None:
    why = Reason(ReasonCode.SNAPSHOT_WAITS, {"what": "all replication slots are in use"})
    pipeline.table("orders", state="snapshot", why=why)
    assert [code for code, _, _ in of_tables(pipeline)] == ["table.failing"]


def test_an_applier_whose_clock_is_fast_is_dead_when_its_record_no_longer_changes(pipeline: RecordedPipeline) -> None:
    pipeline.table("orders")
    now = [NOW]
    reporter = pipeline.reporter(clock=lambda: now[0])
    ahead = NOW + timedelta(hours=1)
    tables = rows(pipeline.log.state)

    def applier() -> set[str]:
        return {problem.code for problem in reporter.take().verdict.problems if problem.part == "applier"}

    pipeline.said(AppliedLog(1, "a", ahead.isoformat(), tables, ahead.isoformat()))
    assert applier() == {"applier.clock"}
    now[0] += timedelta(seconds=200)
    assert applier() == {"applier.clock", "applier.dead"}
    assert reporter.take().to_json()["apply"]["last_record_at"] == NOW.isoformat(), "the page says when it was seen"
    written, succeeded = ((ahead + timedelta(seconds=passed)).isoformat() for passed in (200, -150))
    pipeline.said(AppliedLog(2, "a", written, tables, succeeded))
    assert applier() == {"applier.clock", "applier.failing"}, (
        "it lives, and had no success for longer than it may by its own clock"
    )


def test_an_applier_that_died_does_not_live_on_for_as_long_as_our_clock_was_set_back(
    pipeline: RecordedPipeline,
) -> None:
    pipeline.table("orders")
    now = [NOW]
    reporter = pipeline.reporter(clock=lambda: now[0])
    pipeline.said(AppliedLog(1, "a", NOW.isoformat(), rows(pipeline.log.state), NOW.isoformat()))
    reporter.take()
    now[0] -= timedelta(hours=5)
    reporter.take()
    now[0] += timedelta(seconds=200)
    assert "applier.dead" in {problem.code for problem in reporter.take().verdict.problems}


def test_a_manifest_that_lacks_what_this_process_has_stored_is_corrupt(pipeline: RecordedPipeline) -> None:
    before = pipeline.log.state
    pipeline.table("orders")
    now = pipeline.log.state
    check_holds(now, before)
    check_holds(now, now)
    for seen in (PipelineState(), before, replace(now, previous_sha256="of another entry")):
        with pytest.raises(ManifestCorrupt):
            check_holds(seen, now)


def test_lag_is_the_age_of_the_oldest_change_that_the_lake_lacks(pipeline: RecordedPipeline) -> None:
    pipeline.table("orders")
    pipeline.table("quiet")
    both = AppliedLog(9, "a", NOW.isoformat(), rows(pipeline.log.state))
    pipeline.changes("orders", lsn=200, at=NOW - timedelta(seconds=30))
    pipeline.changes("orders", lsn=300, at=NOW - timedelta(seconds=10))
    pipeline.said(both)
    lags = {table.table: table.lag_seconds for table in pipeline.report().tables}
    assert lags["orders"] == 30.0
    assert lags["quiet"] == 0.0
    assert pipeline.report().pending_entries == 2


def test_lag_is_never_negative_when_the_sources_clock_is_ahead(pipeline: RecordedPipeline) -> None:
    pipeline.table("orders")
    done = pipeline.log.state.seq
    pipeline.changes("orders", lsn=200, at=NOW + timedelta(hours=1))
    pipeline.applied("orders", through_seq=done, complete_through_lsn=100)
    assert pipeline.report().tables[0].lag_seconds == 0.0


def test_the_lake_has_a_position_as_soon_as_all_its_live_tables_have_one(pipeline: RecordedPipeline) -> None:
    """Boundaries are stated less often, and for minutes not at all."""
    pipeline.table("orders")
    pipeline.table("stock")
    pipeline.table("next", state="snapshot")
    lsns = {"orders": 300, "stock": 200}
    known = {name: row(name, through_seq=4, complete_through_lsn=lsn) for name, lsn in lsns.items()}
    pipeline.said(AppliedLog(1, "a", NOW.isoformat(), known))
    report = pipeline.report()
    assert (report.complete_lsn, report.boundary_lsn) == (200, 0)
    assert {stage.stage: stage.lsn for stage in report.stages}["applied"] == 200
    assert report.to_json()["apply"]["complete_through_lsn"] == "0/C8"


def test_a_table_says_since_when_it_is_in_its_state(pipeline: RecordedPipeline) -> None:
    pipeline.table("orders", state="snapshot")
    snapshot_since = pipeline.report().tables[0].since
    assert snapshot_since
    pipeline.table("orders", state="snapshot", reason="the same again")
    assert pipeline.report().tables[0].since == snapshot_since
    pipeline.table("orders", state="stale", reason="rewritten")
    stale = pipeline.report().tables[0].since
    assert stale >= snapshot_since
    (problem,) = [one for one in pipeline.report().verdict.problems if one.code == "table.stale"]
    assert problem.since == datetime.fromisoformat(stale).timestamp()


def test_a_reporter_sees_what_came_since_its_last_look(pipeline: RecordedPipeline) -> None:
    pipeline.table("orders")
    reporter = Reporter(pipeline="shop", store=pipeline.store, lake_uri="file:///lake", source=None)
    assert reporter.take().tables[0].state == "snapshot"
    pipeline.applied("orders", through_seq=2, complete_through_lsn=100)
    pipeline.store.create(keys.apply_complete(1), Complete(1, 100, 2, NOW.isoformat(), {"public.orders": 4}).encode())
    report = reporter.take()
    assert (report.tables[0].state, report.complete_lsn) == ("live", 100)
    assert report.tables[0].path == "file:///lake/public/orders"


@pytest.mark.parametrize("applier", ["live", "paused", "quarantined"])
def test_a_paused_table_says_how_much_waits_and_is_never_a_problem(pipeline: RecordedPipeline, applier: str) -> None:
    pipeline.table("orders")
    pipeline.table("others")
    pipeline.applied("orders", state=applier, through_seq=3, complete_through_lsn=100, failing=applier == "quarantined")
    pipeline.pause("orders", paused=True)
    pipeline.changes("orders", lsn=200, at=NOW - timedelta(days=3))
    report = pipeline.report()
    table = report.tables[0]
    assert (table.state, table.waiting_rows, table.waiting_bytes, table.lag_seconds) == ("paused", 1, 10, None)
    assert "(rows: 1, 0.0 MiB)" in table.reason
    assert "sluice tables resume public.orders" in table.reason
    assert table.since
    assert report.pending.bytes == 0
    assert {one.code for one in report.verdict.problems if one.part in ("tables", "lake")} <= {"table.snapshot"}
    assert all("orders" not in problem.where for problem in report.verdict.problems)


def test_a_stale_table_stays_a_problem_while_it_is_paused(pipeline: RecordedPipeline) -> None:
    pipeline.table("orders")
    pipeline.pause("orders", paused=True)
    pipeline.applied("orders", state="stale", reason="somebody wrote into the lake table", complete_through_lsn=100)
    report = pipeline.report()
    assert (report.tables[0].state, report.tables[0].reason) == ("stale", "somebody wrote into the lake table")
    assert "table.stale" in {problem.code for problem in report.verdict.problems}


def test_a_pause_that_has_ended_is_over_although_the_applier_does_not_know_it_yet(pipeline: RecordedPipeline) -> None:
    pipeline.table("orders")
    pipeline.pause("orders", paused=True)
    pipeline.changes("orders", lsn=200, at=NOW - timedelta(seconds=30))
    pipeline.applied("orders", state="paused", through_seq=3, complete_through_lsn=100)
    pipeline.pause("orders", paused=False)
    table = pipeline.report().tables[0]
    assert (table.state, table.reason, table.lag_seconds, table.waiting_rows) == ("live", "", 30.0, None)


def holds(pipeline: RecordedPipeline, instance: str, *, sign: Sign, at: datetime) -> None:
    process = Process("m", "b", "n", 1, "1")
    holder = Holder(instance, 1, at.timestamp(), 120.0, process, sign)
    pipeline.store.put(keys.APPLY_LEASE, holder.encode())


def seen_at(pipeline: RecordedPipeline, at: datetime) -> tuple[Report, list[str]]:
    report = pipeline.reporter(clock=lambda: at).take()
    return report, [one.code for one in report.verdict.problems]


def test_an_applier_that_only_renews_its_lease_is_heard_and_one_whose_loop_stands_is_dead(
    pipeline: RecordedPipeline,
) -> None:
    later = NOW + timedelta(minutes=4)
    pipeline.table("orders")
    pipeline.applied("orders", complete_through_lsn=100, through_seq=pipeline.log.state.seq)
    assert seen_at(pipeline, later)[1] == ["applier.dead"]
    alive = later.timestamp() - 30
    holds(pipeline, "a", sign=Sign(alive, alive, 1, 0), at=later)
    report, codes = seen_at(pipeline, later)
    assert codes == []
    assert report.applier.record_at == pytest.approx(alive)
    assert report.applier.succeeded_at == pytest.approx(alive)
    holds(pipeline, "a", sign=Sign(NOW.timestamp() + 1, NOW.timestamp(), 1, 0), at=later)
    assert seen_at(pipeline, later)[1] == ["applier.dead"]
    holds(pipeline, "another", sign=Sign(alive, alive, 1, 0), at=later)
    assert seen_at(pipeline, later)[1] == ["applier.dead"]
    pipeline.store.put(keys.APPLY_LEASE, b"damaged")
    assert seen_at(pipeline, later)[1] == ["applier.dead"]


def test_a_table_that_comes_after_the_settings_were_read_again_is_shown_with_its_lake_tables(
    pipeline: RecordedPipeline,
) -> None:
    pipeline.table("orders")
    reporter = pipeline.reporter()
    reporter.take()
    reporter.configure(lambda _: (LakeTarget("changelog"), LakeTarget("mirror", name="now")))
    pipeline.table("events")
    shown = sorted(one.path.removeprefix("file:///lake/") for one in reporter.take().tables)
    assert shown == ["public/events", "public/now", "public/orders"]


class Sparing:
    """A reporter that spares requests. The applier has applied the one table, and holds its lease since NOW."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0.0
        monkeypatch.setattr("sluice.health.reporter.time.monotonic", lambda: 1000.0 + self.passed)
        self.pipeline = pipeline = RecordedPipeline()
        pipeline.table("orders")
        self.applied(100)
        holds(pipeline, "a", sign=Sign(NOW.timestamp(), 0.0, 1, 0), at=NOW)
        self.reporter = pipeline.reporter(clock=lambda: NOW + timedelta(seconds=self.passed))
        self.reporter.spare(lambda: pipeline.log.state, pipeline.log.entry)

    def applied(self, lsn: int, *, state: str = "live") -> None:
        through_seq = self.pipeline.log.state.seq
        self.pipeline.applied("orders", state=state, complete_through_lsn=lsn, through_seq=through_seq)

    def after(self, seconds: float) -> Report:
        self.passed += seconds
        return self.reporter.take()


def test_a_look_that_spares_requests_asks_nothing_while_nothing_changes_and_misses_no_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.support.recorded.MemoryStore", WatchedStore)
    sparing = Sparing(monkeypatch)
    pipeline, store = sparing.pipeline, sparing.pipeline.store
    assert isinstance(store, WatchedStore)
    for _ in range(2):
        sparing.after(0)
    store.asked.clear()
    for _ in range(3):
        sparing.after(15)
    assert not store.asked
    sparing.after(30)
    assert len(store.asked) <= 2, "the lease, and completions while there is none"
    put(pipeline.log, Progress(), through_lsn=150)
    store.asked.clear()
    assert sparing.after(15).pending_entries == 1
    sparing.after(15)
    assert not store.asked, "nobody waits for an advance"
    pipeline.changes("orders", lsn=200, at=NOW)
    store.asked.clear()
    assert sparing.after(0).pending.files == 1
    assert not [key for key in store.asked if key.startswith(keys.MANIFEST)], "this process appended it"
    sparing.applied(200)
    report = sparing.after(0)
    assert (report.complete_lsn, report.manifest.seq) == (200, pipeline.log.state.seq)


def test_an_applier_that_lives_again_after_the_store_was_away_is_not_called_dead_for_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sparing = Sparing(monkeypatch)
    sparing.after(0)
    sparing.after(95)  # a renewal failed meanwhile
    alive = NOW.timestamp() + 96
    holds(sparing.pipeline, "a", sign=Sign(alive, alive, 1, 0), at=NOW)
    assert sparing.after(30).verdict.problems == ()


def test_a_lease_that_was_renewed_before_the_newest_report_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The applier was killed behind its report, or could not renew since: the report says that a table stopped."""
    sparing = Sparing(monkeypatch)
    sparing.applied(100, state="stale")
    for seconds in (0, 61, 61, 61):
        assert [table.state for table in sparing.after(seconds).tables] == ["stale"]
