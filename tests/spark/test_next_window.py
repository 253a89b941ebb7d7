"""Windows that were read, folded and looked for while the one before them was committed: the table is
the same, whatever becomes of the one before.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from sluice import faults
from sluice.contract.entries import Table
from sluice.contract.table_state import State
from sluice_spark.lake.commit_way import DIRECT, MERGE
from tests.spark.changes import INT4, Change, column
from tests.spark.conftest import Pipeline, Running, armed, held, running
from tests.spark.model import ID, SCHEMA, Lake, by_key, histories, row, windows
from tests.spark.processes import SMALL_JVM, run_applier
from tests.support.extent import FULL, cases, slow

BEFORE, AFTER = "apply.ahead.before", "apply.ahead.after"
COMMIT, LANDED, READ = "apply.commit.before", "apply.commit.after", "apply.entries.read"
WIDER = replace(SCHEMA, version=2, columns=(*SCHEMA.columns, column("more", 6, INT4)))


def _in_lake(pipeline: Pipeline) -> list[dict[str, object]]:
    return pipeline.rows() if list(pipeline.log().glob("*.json")) else []


def _backlog(pipeline: Pipeline) -> list[dict[str, object]]:
    """Four windows behind the snapshot, each of which needs the one before. Returns the rows after them."""
    pipeline.begin(SCHEMA, row(1), row(2), row(3))
    for changes in (
        [Change("u", row(1, 1)), Change("i", row(4))],
        [Change("u", {"id": 1, "v": 2}, unchanged=("big", "at")), Change("u", row(4, 2)), Change("d", old={"id": 2})],
        [Change("u", {"id": 5, "v": 3}, old={"id": 4}, unchanged=("big", "at")), Change("i", row(2, 3, "again"))],
        [Change("u", row(5, 4)), Change("d", old={"id": 3}), Change("u", {"id": 1, "v": 4}, unchanged=("big", "at"))],
    ):
        pipeline.change(*changes)
    return [row(1, 4), row(2, 3, "again"), row(5, 4)]


FIRST_TWO = [row(1, 1), row(2), row(3), row(4)]
"""Behind the snapshot and the first window."""


@contextmanager
def _committing(pipeline: Pipeline, number: int, *, way: str = DIRECT) -> Iterator[Running]:
    """The commit `number` of rows is under way and the window behind it is prepared, until the block ends. The
    first one is that of the snapshot, beside which nothing is prepared.
    """
    gate = pipeline.folder / "gate"
    with (
        held(gate, f"{COMMIT}@{number}", also=f"{AFTER}=count,{READ}=count"),
        running(pipeline, way=way, max_window_bytes=1) as work,
    ):
        try:
            work.until(
                lambda: (faults.passages(COMMIT), faults.passages(AFTER)) == (number, number - 1),
                what="a commit is under way and the next window prepared",
            )
            yield work
        finally:
            gate.touch()


@settings(
    max_examples=8 if FULL else 1,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    history=histories(keys=8, length=60),
    cuts=st.lists(st.integers(0, 99), min_size=4, max_size=6),
    way=st.sampled_from([DIRECT, DIRECT, MERGE]),
    name=st.integers(0, 10**9),
)
def test_any_backlog_leaves_the_table_equal(
    pipeline: Pipeline, history: list[tuple[Change, Lake]], cuts: list[int], way: str, name: int
) -> None:
    pipeline = Pipeline(pipeline.spark, pipeline.folder / f"{id(history)}-{name}")
    pipeline.begin(SCHEMA)
    for changes in windows(history, cuts):
        pipeline.change(*(replace(change) for change in changes))
    with armed(f"{AFTER}=count"):
        pipeline.applied(way=way, max_window_bytes=1)
    assert by_key(pipeline.rows()) == history[-1][1]


@pytest.mark.parametrize(("memory", "prepared"), [(30_000, 0), (60_000, 2)])
def test_both_windows_together_take_the_memory_of_one(pipeline: Pipeline, memory: int, prepared: int) -> None:
    """Each weighs a little more than 20,000 bytes. Nothing comes after the last one, which may still grow."""
    pipeline.begin(SCHEMA)
    for key in range(4):
        pipeline.change(Change("i", row(key, big="x" * 20_000)))
    with armed(f"{BEFORE}=count"):
        pipeline.apply(max_window_bytes=1, max_memory_bytes=memory, way=DIRECT)
        assert faults.passages(BEFORE) == prepared
    assert pipeline.keys() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "fault", [pytest.param(f"{COMMIT}=raise:StoreUnavailable@4", marks=slow), f"{LANDED}=raise:StoreUnavailable@4"]
)
def test_a_commit_that_fails_or_lands_unseen_beside_a_prepared_window_is_exact(pipeline: Pipeline, fault: str) -> None:
    rows = _backlog(pipeline)
    with armed(f"{fault},{AFTER}=count"):
        with running(pipeline, way=DIRECT, max_window_bytes=1) as work:
            work.until(lambda: _in_lake(pipeline) == rows, what="the backlog is applied")
        assert faults.passages(AFTER) > 0
    assert pipeline.reported()[ID].state == "live"


@slow
def test_a_window_whose_preparation_fails_is_applied_in_its_turn(pipeline: Pipeline) -> None:
    rows = _backlog(pipeline)
    with armed(f"{BEFORE}=raise:StoreUnavailable"):
        pipeline.applied(max_window_bytes=1)
        assert faults.passages(BEFORE) == 2
    assert pipeline.rows() == rows


def _begin_again(pipeline: Pipeline) -> list[dict[str, object]]:
    pipeline.manifest.table(SCHEMA, state="stale", reason="rewritten", new=False)
    pipeline.begin(SCHEMA, row(9), generation=2)
    return [row(9)]


def _pause(pipeline: Pipeline) -> list[dict[str, object]]:
    pipeline.manifest.append(Table(SCHEMA.table_id, "public", "items", State.LIVE, 1, paused=True))
    # The commit that was under way landed, nothing behind it did.
    return FIRST_TWO


@pytest.mark.parametrize("call_off", cases([_begin_again, _pause], quick=[_begin_again]))
def test_a_table_that_is_called_off_gets_no_window_that_was_prepared(
    pipeline: Pipeline, call_off: Callable[[Pipeline], list[dict[str, object]]]
) -> None:
    _backlog(pipeline)
    with _committing(pipeline, 2) as work:
        rows = call_off(pipeline)
        looks = faults.passages(READ)
        work.passes(READ, looks + 2)
        (pipeline.folder / "gate").touch()
        work.until(lambda: _in_lake(pipeline) == rows, what="the table is as it must be")
    assert pipeline.rows() == rows


def test_files_that_were_searched_ahead_and_are_gone_are_searched_anew(pipeline: Pipeline) -> None:
    """Somebody optimizes the table between the search and the commit, which is refused and tried again."""
    rows = _backlog(pipeline)
    with _committing(pipeline, 3) as work:
        pipeline.sql("OPTIMIZE {t}")
        (pipeline.folder / "gate").touch()
        work.until(lambda: _in_lake(pipeline) == rows, what="the backlog is applied")
    assert pipeline.reported()[ID].state == "live"


@slow
def test_a_window_after_a_change_of_columns_is_folded_when_the_table_has_them(pipeline: Pipeline) -> None:
    _backlog(pipeline)
    pipeline.evolve(WIDER)
    for change in (Change("u", row(1, 5, more=7)), Change("i", row(8, 5, more=8)), Change("d", old={"id": 2})):
        pipeline.change(change)
    with armed(f"{AFTER}=count"):
        pipeline.applied(max_window_bytes=1)
        assert faults.passages(AFTER) >= 4
    found = pipeline.sql("SELECT id, v, more FROM {t} ORDER BY id")
    assert list(map(tuple, found)) == [(1, 5, 7), (5, 4, None), (8, 5, 8)]


def test_a_stop_while_one_window_is_committed_and_one_prepared_leaves_whole_windows(
    pipeline: Pipeline,
) -> None:
    rows = _backlog(pipeline)
    gate = pipeline.folder / "gate"
    with held(gate, f"{COMMIT}@2", also=f"{BEFORE}=hold:{gate},{AFTER}=count") as let_go:
        with running(pipeline, way=DIRECT, max_window_bytes=1) as work:
            try:
                work.until(lambda: (faults.passages(COMMIT), faults.passages(BEFORE)) == (2, 1), "both are under way")
                work.stop.set()
            finally:
                let_go()
        # What was to be prepared was not even read to its end.
        assert faults.passages(AFTER) <= 1
    assert pipeline.rows() == FIRST_TWO
    version = pipeline.version()
    pipeline.applied()
    assert pipeline.rows() == rows
    assert pipeline.version() > version


@slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", [BEFORE, AFTER])
def test_a_kill_while_a_window_is_prepared_loses_and_doubles_nothing(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    rows = _backlog(pipeline)
    monkeypatch.setenv("SLUICE_FAULTS", f"{point}=crash@2")
    run = run_applier(pipeline.options(way=DIRECT, max_window_bytes=1, **SMALL_JVM))
    assert run.code == faults.CRASHED, run.output
    pipeline.applied(way=DIRECT)
    assert _in_lake(pipeline) == rows
