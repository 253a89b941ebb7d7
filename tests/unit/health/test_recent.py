"""What a running process remembers of itself: an hour of minutes, and its errors without anybody's values."""

from sluice.contract.table_state import State
from sluice.errors import SourceUnavailable
from sluice.health.facts import Facts, TableSeen, grouped
from sluice.health.process_state import ProcessState
from sluice.health.snapshots import SnapshotReport, SnapshotRound, snapshots, under_way
from sluice.health.throughput import MINUTES, Throughput
from sluice.health.verdict import judge
from sluice.ingest.status import IngestStatus, SnapshotWait
from sluice.telemetry.recent_errors import KEPT, RECENT_SECONDS, RecentErrors
from tests.support.recorded import RecordedPipeline


def test_a_minute_holds_what_was_counted_within_it() -> None:
    rows = Throughput(("rows",))
    rows.add({"rows": 100}, now=600)
    rows.add({"rows": 160}, now=630)
    rows.add({"rows": 190}, now=661)
    minutes = rows.to_json(now=675)
    assert [(minute["rows"], minute["seconds"]) for minute in minutes] == [(60, 60.0), (30, 15.0)]
    assert minutes[0]["at"] == "1970-01-01T00:10:00+00:00"


def test_a_process_counts_from_within_the_minute_it_began_and_a_total_that_fell_from_zero() -> None:
    rows = Throughput(("rows",))
    for total in (100, 150, 20):
        rows.add({"rows": total}, now=645)
    (minute,) = rows.to_json(now=655)
    assert (minute["rows"], minute["seconds"]) == (70, 10.0)


def test_minutes_in_which_nothing_was_asked_are_there_and_only_an_hour_is_kept() -> None:
    rows = Throughput(("rows",))
    rows.add({"rows": 0}, now=0)
    rows.add({"rows": 5}, now=60 * 200)
    minutes = rows.to_json(now=60 * 200)
    assert len(minutes) == MINUTES
    assert [minute["rows"] for minute in minutes] == [0] * (MINUTES - 1) + [5]


def test_a_library_s_words_never_become_a_problem() -> None:
    errors = RecentErrors()
    errors.note("upload", ValueError("row value canary"))
    errors.note("upload", SourceUnavailable("the server is away", hint="wait"))
    ours, theirs = errors.recent()
    assert (theirs.error, theirs.message) == ("ValueError", "")
    assert (ours.message, ours.hint) == ("the server is away", "wait")


def test_errors_of_one_kind_are_counted_and_forgotten_after_an_hour() -> None:
    now = [1000.0]
    errors = RecentErrors(clock=lambda: now[0])
    errors.note("replication", SourceUnavailable("first"))
    now[0] += 60
    errors.note("replication", SourceUnavailable("second"))
    (one,) = errors.recent()
    assert (one.count, one.message, one.first_at, one.last_at) == (2, "second", 1000.0, 1060.0)
    now[0] += RECENT_SECONDS + 1
    assert errors.recent() == ()
    errors.note("replication", SourceUnavailable("third"))
    assert errors.recent()[0].count == 1


def test_a_flood_of_kinds_keeps_the_newest() -> None:
    errors = RecentErrors()
    for number in range(3 * KEPT):
        errors.note(f"place {number}", SourceUnavailable("away"))
    assert [error.where for error in errors.recent()][:2] == [f"place {3 * KEPT - 1}", f"place {3 * KEPT - 2}"]
    assert len(errors.recent()) == KEPT


def test_a_thousand_tables_with_one_reason_are_one_problem() -> None:
    tables = [TableSeen(f"public.t{n}", State.STALE, "rewritten", float(n + 5)) for n in range(1000)]
    tables.append(TableSeen("public.other", State.STALE, "dropped"))
    found = judge(Facts(now=0.0, tables=grouped(tables))).problems
    assert [(one.code, one.count, one.message, one.since) for one in found if one.code == "table.stale"] == [
        ("table.stale", 1000, "rewritten", 5.0),
        ("table.stale", 1, "dropped", None),
    ]
    stale = next(one for one in found if one.count == 1000)
    assert stale.where == "public.t0, public.t1, public.t2 and 997 more"
    assert "sluice resync" in stale.remedy


def test_time_left_needs_an_estimate_and_a_rate() -> None:
    assert under_way("t", rows=50, estimated_rows=200, seconds=10.0).eta_seconds == 30.0
    assert under_way("t", rows=50, estimated_rows=-1, seconds=10.0).estimated_rows is None
    passed = under_way("t", rows=50, estimated_rows=40, seconds=10.0)
    assert passed.eta_seconds is None, "an estimate that was passed says nothing"
    assert under_way("t", rows=0, estimated_rows=40, seconds=10.0).rows_per_second is None


def test_snapshots_count_tables_that_have_their_rows_and_rates_come_from_the_process_alone() -> None:
    pipeline = RecordedPipeline()
    pipeline.table("done")
    pipeline.table("now", state="snapshot")
    pipeline.table("next", state="snapshot")
    pipeline.table("gone", state="detached")
    tables = (
        under_way("public.now", rows=100, estimated_rows=200, seconds=10.0),
        SnapshotReport("public.next", None, 100, None, None),
    )
    found = snapshots(pipeline.log.state, SnapshotRound(tables, 100, 10.0, 20.0))
    assert (found.tables_done, found.tables_total, found.rows) == (1, 3, 100)
    assert (found.rows_per_second, found.eta_seconds) == (10.0, 20.0)
    waiting = snapshots(pipeline.log.state, SnapshotRound((), 0, 10.0, None, waits="60 active sessions are above 50"))
    assert waiting.waits == "60 active sessions are above 50"
    assert [one.table for one in waiting.tables] == ["public.now", "public.next"], "no round has begun"
    outside = snapshots(pipeline.log.state, None)
    assert (outside.tables_done, outside.tables_total) == (1, 3)
    assert (outside.rows_per_second, outside.eta_seconds) == (None, None)
    assert [one.table for one in outside.tables] == ["public.now", "public.next"]


def test_what_the_counters_show_is_waited_for_while_it_lasts_and_not_a_moment_of_it() -> None:
    status = IngestStatus(backpressure_cause="upload", unread_s=1.0)
    process = ProcessState(status, RecentErrors(), None)
    assert process.facts().waits == ()
    status.unread_s = 40.0
    status.snapshots.pending = 1
    status.snapshots.most_rows_per_second = 5000
    status.snapshots.begin("public.a", estimated_rows=10)
    why = "the lag of the stream is above 1.0 MiB"
    status.snapshots.load_wait = SnapshotWait(("stream_lag",), why, 77.0, holding=False)
    stream, *others = process.facts().waits
    assert (stream.what, stream.reason) == ("reading the stream", "the upload to the spool to catch up (backpressure)")
    assert [(one.reason, one.since) for one in others] == [
        (why, 77.0),
        ("source.snapshot_rows_per_second lets them read 5,000 rows/s", None),
    ]
    status.snapshots.left("public.a", done=True)
    status.snapshots.pending, status.backpressure_cause = 0, None
    assert process.facts().waits == ()
