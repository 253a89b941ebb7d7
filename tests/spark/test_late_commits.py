"""Commits of an applier that was replaced, which land while the window of its successor is on its way.

What they hold is never applied a second time, or the table stops by name. An attempt of the same process that seemed to
have failed is the same case.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice import faults
from sluice.errors import ServiceError
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from sluice_spark.lake.failures import CommitConflict
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA
from tests.spark.windows import Windows
from tests.support.pipeline import wait_until

BEFORE = "apply.commit.before"
READ = "apply.read.after"


def _insert(key: int) -> Change:
    return Change("i", {"id": key, "v": key, "big": f"b{key}", "at": None})


class _Worker(threading.Thread):
    """Applies one window; `error` is what it failed with."""

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self._windows = windows
        self.error: ServiceError | None = None

    def run(self) -> None:
        try:
            self._windows.apply()
        except ServiceError as error:
            self.error = error


@contextmanager
def _frozen(pipeline: Pipeline, way: str, *, then: str = "") -> Iterator[tuple[Windows, Callable[[], None]]]:
    """An applier that is frozen right before its commit of row 2. Rows 2 and 3 wait for its successor, which is given
    with what lets the frozen one go on and end. `then` are faults of the successor.
    """
    pipeline.begin(SCHEMA, _insert(1).values)
    frozen, gate = Windows(pipeline, way=way), pipeline.folder / "gate"
    frozen.apply()
    successor = Windows(pipeline, way=way)
    successor.place, successor.state = frozen.place, frozen.state
    pipeline.manifest.transaction([_insert(2)], SCHEMA)
    faults.arm(f"{BEFORE}=hold:{gate}@1{then}")
    one = _Worker(frozen)
    try:
        one.start()
        wait_until(lambda: faults.passages(BEFORE) > 0, what="the first is about to commit")
        pipeline.manifest.transaction([_insert(3)], SCHEMA)

        def thaw() -> None:
            gate.touch()
            one.join()
            assert one.error is None

        yield successor, thaw
    finally:
        gate.touch()
        one.join()
        faults.arm("")


def _keys(pipeline: Pipeline) -> list[object]:
    return sorted(row["id"] for row in pipeline.rows())  # type: ignore[type-var]


@pytest.mark.parametrize("way", [DIRECT, DISTRIBUTED, MERGE])
def test_a_commit_of_a_replaced_applier_that_lands_after_our_look_is_not_applied_again(
    pipeline: Pipeline, tmp_path: Path, way: str
) -> None:
    gate = tmp_path / "read"
    with _frozen(pipeline, way, then=f",{READ}=hold:{gate}@2") as (successor, thaw):
        worker = _Worker(successor)
        worker.start()
        wait_until(lambda: faults.passages(READ) > 1, what="the successor has looked")
        thaw()
        gate.touch()
        worker.join()
    assert isinstance(worker.error, CommitConflict)
    assert _keys(pipeline) == [1, 2]


@pytest.mark.parametrize("way", [DIRECT, DISTRIBUTED, MERGE])
def test_a_late_commit_of_a_replaced_applier_leaves_no_row_twice_in_silence(pipeline: Pipeline, way: str) -> None:
    with _frozen(pipeline, way) as (successor, thaw):
        # The last thing that happens before a commit.
        successor.lake._before_commit = thaw
        worker = _Worker(successor)
        worker.start()
        worker.join()
    if way == MERGE:
        # A statement is based on whatever it finds.
        assert "rows may be there twice" in str(worker.error)
    else:
        assert isinstance(worker.error, CommitConflict)
        assert _keys(pipeline) == [1, 2]


def test_the_loop_takes_what_landed_late_for_applied_and_goes_on(pipeline: Pipeline) -> None:
    with _frozen(pipeline, DIRECT, then=f",{READ}=delay:3@2") as (_, thaw):
        late = threading.Timer(1.5, thaw)
        loop = threading.Thread(target=lambda: pipeline.apply(way=DIRECT))
        loop.start()
        wait_until(lambda: faults.passages(READ) > 1, what="the loop has looked")
        late.start()
        loop.join()
        late.join()
    assert _keys(pipeline) == [1, 2, 3]
    assert [row.state for row in pipeline.reported().values()] == ["live"]
