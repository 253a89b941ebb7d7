"""How far a round of snapshots is, and for how much longer: from what was read and what the server
expects, or not at all.
"""

from sluice.ingest.status import SnapshotProgress


def progress(**waiting: int) -> SnapshotProgress:
    return SnapshotProgress(tables_total=len(waiting), waiting=dict(waiting), started_at=0.0)


def test_rows_of_finished_tables_stay_in_the_sum_and_in_the_rate() -> None:
    round_ = progress(a=100, b=300)
    assert (round_.expected_rows, round_.seconds_left(10.0)) == (400, None)
    round_.begin("a", estimated_rows=100)
    round_.tables["a"].rows = 50
    assert (round_.expected_rows, round_.seconds_left(10.0)) == (400, 70.0)
    round_.tables["a"].rows = 120
    round_.left("a", done=True)
    round_.begin("b", estimated_rows=300)
    round_.tables["b"].rows = 80
    assert (round_.expected_rows, round_.seconds_left(20.0), round_.tables_done) == (420, 22.0, 1)


def test_rows_from_earlier_rounds_are_neither_expected_again_nor_part_of_the_rate() -> None:
    round_ = progress(a=1000)
    round_.begin("a", estimated_rows=1000, rows_before=900)
    round_.tables["a"].rows = 50
    assert (round_.expected_rows, round_.seconds_left(10.0)) == (100, 10.0)


def test_nothing_is_forecast_without_an_estimate_or_past_it() -> None:
    unknown = progress(a=100, never_analysed=-1)
    unknown.begin("a", estimated_rows=100)
    unknown.tables["a"].rows = 50
    assert (unknown.expected_rows, unknown.seconds_left(10.0)) == (None, None)
    past = progress(a=100)
    past.begin("a", estimated_rows=100)
    past.tables["a"].rows = 150
    assert (past.expected_rows, past.seconds_left(10.0)) == (150, None)
