"""Windows that were read, folded and looked for while the one before them was committed: the table is
the same, whatever becomes of the one before.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from sluice import faults
from sluice.contract.entries import Table
from sluice.contract.table_state import State
from sluice_spark.applier import Applier
from sluice_spark.lake.commit_way import DIRECT, MERGE
from tests.spark import lake
from tests.spark.changes import INT4, Change, column
from tests.spark.conftest import Pipeline, Running, running
from tests.spark.model import SCHEMA, Lake, histories, windows
from tests.spark.processes import SMALL_JVM, run_applier
from tests.support.extent import FULL, slow
from tests.support.pipeline import wait_until

BEFORE, AFTER = "apply.ahead.before", "apply.ahead.after"
COMMIT, LANDED, READ = "apply.commit.before", "apply.commit.after", "apply.entries.read"
WIDER = replace(SCHEMA, version=2, columns=(*SCHEMA.columns, column("more", 6, INT4)))


def _row(key: int, v: int = 0, big: str | None = "B") -> dict[str, object]:
    return {"id": key, "v": v, "big": big, "at": None}


def _shown(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=str)


def _in_lake(pipeline: Pipeline) -> list[dict[str, object]]:
    return _shown(pipeline.rows()) if list(pipeline.path().glob("_delta_log/*.json")) else []


def _backlog(pipeline: Pipeline) -> list[dict[str, object]]:
    """Four windows behind the snapshot, each of which needs the one before. Returns the rows after them."""
    pipeline.begin(SCHEMA, _row(1), _row(2), _row(3))
    for changes in (
        [Change("u", _row(1, 1)), Change("i", _row(4))],
        [Change("u", {"id": 1, "v": 2}, unchanged=("big", "at")), Change("u", _row(4, 2)), Change("d", old={"id": 2})],
        [Change("u", {"id": 5, "v": 3}, old={"id": 4}, unchanged=("big", "at")), Change("i", _row(2, 3, "again"))],
        [Change("u", _row(5, 4)), Change("d", old={"id": 3}), Change("u", {"id": 1, "v": 4}, unchanged=("big", "at"))],
    ):
        pipeline.manifest.transaction(changes, SCHEMA)
    return _shown([_row(1, 4), _row(2, 3, "again"), _row(5, 4)])


@contextmanager
def _armed(text: str) -> Iterator[None]:
    faults.arm(text)
    try:
        yield
    finally:
        faults.arm("")


@contextmanager
def _committing(pipeline: Pipeline, number: int, *, way: str = DIRECT) -> Iterator[Running]:
    """The commit `number` of rows is under way and the window behind it is prepared, until the block ends. The
    first one is that of the snapshot, beside which nothing is prepared, and behind it the table says what the source
    says of it.
    """
    gate, passage = pipeline.folder / "gate", number + 1
    with (
        _armed(f"{COMMIT}=hold:{gate}@{passage},{AFTER}=count,{READ}=count"),
        running(pipeline, way=way, max_window_bytes=1) as work,
    ):
        try:
            wait_until(
                lambda: bool(work.ended) or (faults.passages(COMMIT), faults.passages(AFTER)) == (passage, number - 1),
                what="a commit is under way and the next window prepared",
            )
            yield work
        finally:
            gate.touch()
        assert work.ended == []


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
        pipeline.manifest.transaction([replace(change) for change in changes], SCHEMA)
    with _armed(f"{AFTER}=count"):
        assert pipeline.apply(way=way, max_window_bytes=1).tables["16385"].state == "live"
    assert {row["id"]: row for row in pipeline.rows()} == history[-1][1]


@pytest.mark.parametrize(("memory", "prepared"), [(30_000, 0), (60_000, 2)])
def test_both_windows_together_take_the_memory_of_one(pipeline: Pipeline, memory: int, prepared: int) -> None:
    """Each weighs a little more than 20,000 bytes. Nothing comes after the last one, which may still grow."""
    pipeline.begin(SCHEMA)
    for key in range(4):
        pipeline.manifest.transaction([Change("i", _row(key, big="x" * 20_000))], SCHEMA)
    with _armed(f"{BEFORE}=count"):
        pipeline.apply(max_window_bytes=1, max_memory_bytes=memory, way=DIRECT)
        assert faults.passages(BEFORE) == prepared
    assert sorted(row["id"] for row in pipeline.rows()) == [0, 1, 2, 3]  # type: ignore[type-var]


@pytest.mark.parametrize("fault", [f"{COMMIT}=raise:StoreUnavailable@4", f"{LANDED}=raise:StoreUnavailable@4"])
def test_a_commit_that_fails_or_lands_unseen_beside_a_prepared_window_is_exact(pipeline: Pipeline, fault: str) -> None:
    rows = _backlog(pipeline)
    with _armed(f"{fault},{AFTER}=count"):
        with running(pipeline, way=DIRECT, max_window_bytes=1) as work:
            wait_until(lambda: bool(work.ended) or _in_lake(pipeline) == rows, what="the backlog is applied")
        assert work.ended == []
        assert faults.passages(AFTER) > 0
    assert pipeline.reported()["16385"].state == "live"


def test_a_window_whose_preparation_fails_is_applied_in_its_turn(pipeline: Pipeline) -> None:
    rows = _backlog(pipeline)
    with _armed(f"{BEFORE}=raise:StoreUnavailable"):
        assert pipeline.apply(max_window_bytes=1).tables["16385"].state == "live"
        assert faults.passages(BEFORE) == 2
    assert _shown(pipeline.rows()) == rows


def _begin_again(pipeline: Pipeline) -> list[dict[str, object]]:
    pipeline.manifest.table(SCHEMA, state="stale", reason="rewritten", new=False)
    pipeline.begin(SCHEMA, _row(9), generation=2)
    return [_row(9)]


def _pause(pipeline: Pipeline) -> list[dict[str, object]]:
    pipeline.manifest.append(Table(SCHEMA.table_id, "public", "items", State.LIVE, 1, paused=True))
    # The commit that was under way landed, nothing behind it did.
    return _shown([_row(1, 1), _row(2), _row(3), _row(4)])


@pytest.mark.parametrize("call_off", [_begin_again, _pause])
def test_a_table_that_is_called_off_gets_no_window_that_was_prepared(
    pipeline: Pipeline, call_off: Callable[[Pipeline], list[dict[str, object]]]
) -> None:
    _backlog(pipeline)
    with _committing(pipeline, 2) as work:
        rows = call_off(pipeline)
        looks = faults.passages(READ)
        wait_until(lambda: bool(work.ended) or faults.passages(READ) > looks + 1, what="the applier has read it")
        (pipeline.folder / "gate").touch()
        wait_until(lambda: bool(work.ended) or _in_lake(pipeline) == rows, what="the table is as it must be")
    assert _shown(pipeline.rows()) == rows


def test_files_that_were_searched_ahead_and_are_gone_are_searched_anew(pipeline: Pipeline) -> None:
    """Somebody optimizes the table between the search and the commit, which is refused and tried again."""
    rows = _backlog(pipeline)
    session = pipeline.spark.newSession()
    with _committing(pipeline, 3) as work:
        session.sql(f"OPTIMIZE delta.`{pipeline.path()}`")
        (pipeline.folder / "gate").touch()
        wait_until(lambda: bool(work.ended) or _in_lake(pipeline) == rows, what="the backlog is applied")
    assert pipeline.reported()["16385"].state == "live"


def test_a_window_after_a_change_of_columns_is_folded_when_the_table_has_them(pipeline: Pipeline) -> None:
    _backlog(pipeline)
    pipeline.manifest.table(WIDER, state="live", generation=1)
    wide = {**_row(1, 5), "more": 7}
    pipeline.manifest.transaction([Change("u", wide)], WIDER)
    pipeline.manifest.transaction([Change("i", {**_row(8, 5), "more": 8})], WIDER)
    pipeline.manifest.transaction([Change("d", old={"id": 2})], WIDER)
    with _armed(f"{AFTER}=count"):
        assert pipeline.apply(max_window_bytes=1).tables["16385"].state == "live"
        assert faults.passages(AFTER) >= 4
    found = pipeline.spark.read.format("delta").load(str(pipeline.path())).select("id", "v", "more").collect()
    assert sorted(map(tuple, found)) == [(1, 5, 7), (5, 4, None), (8, 5, 8)]


def test_a_stop_while_one_window_is_committed_and_one_prepared_leaves_whole_windows(
    pipeline: Pipeline,
) -> None:
    rows = _backlog(pipeline)
    gate, stop = pipeline.folder / "gate", threading.Event()
    with _armed(f"{COMMIT}=hold:{gate}@3,{BEFORE}=hold:{gate},{AFTER}=count"):
        applier = Applier(
            pipeline.options(once=False, way=DIRECT, max_window_bytes=1), pipeline.store, pipeline.spark, stop=stop
        )
        thread = threading.Thread(target=applier.run)
        thread.start()
        try:
            wait_until(lambda: faults.passages(COMMIT) == 3 and faults.passages(BEFORE) == 1, what="both are under way")
            stop.set()
        finally:
            gate.touch()
            thread.join(120)
        assert not thread.is_alive()
        # What was to be prepared was not even read to its end.
        assert faults.passages(AFTER) <= 1
    assert _shown(pipeline.rows()) == _shown([_row(1, 1), _row(2), _row(3), _row(4)])
    version = lake.version(pipeline.path())
    assert pipeline.apply().tables["16385"].state == "live"
    assert _shown(pipeline.rows()) == rows
    assert lake.version(pipeline.path()) > version


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
    assert pipeline.apply(way=DIRECT).tables["16385"].state == "live"
    assert _in_lake(pipeline) == rows
