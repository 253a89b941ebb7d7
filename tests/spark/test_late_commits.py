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
from sluice.contract.entries import Snapshot
from sluice.errors import ServiceError, UnsupportedChange
from sluice.manifest.reader import load_state, read_entries
from sluice.manifest.targets import lake_tables
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from sluice_spark.lake.failures import CommitConflict
from sluice_spark.lake.opening import Lake
from sluice_spark.read.window import Chunk, Window
from sluice_spark.snapshot_apply import SnapshotApply
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, held
from tests.spark.heap import RANGES
from tests.spark.model import SCHEMA, row
from tests.spark.test_snapshot_parts import assert_equal, heap_of
from tests.spark.windows import Windows
from tests.support.extent import cases, slow
from tests.support.pipeline import wait_until

BEFORE = "apply.commit.before"
READ = "apply.read.after"


def _insert(key: int) -> Change:
    return Change("i", row(key))


class _Worker(threading.Thread):
    """Applies one window; `error` is what it failed with."""

    def __init__(self, apply: Callable[[], object]) -> None:
        super().__init__()
        self._apply = apply
        self.error: ServiceError | None = None

    def run(self) -> None:
        try:
            self._apply()
        except ServiceError as error:
            self.error = error


@contextmanager
def _held(worker: _Worker, gate: Path, *, then: str = "") -> Iterator[Callable[[], None]]:
    """`worker` right before its first commit. It is given what lets it go on and end. `then` are faults of others."""
    with held(gate, f"{BEFORE}@1", also=then) as let_go:

        def thaw() -> None:
            let_go()
            worker.join()

        worker.start()
        try:
            wait_until(lambda: faults.passages(BEFORE) > 0, what="the first is about to commit")
            yield thaw
        finally:
            thaw()


def _two(pipeline: Pipeline, way: str) -> tuple[Windows, Windows]:
    """An applier that has applied row 1, and its successor."""
    pipeline.begin(SCHEMA, _insert(1).values)
    frozen, successor = Windows(pipeline, way=way), Windows(pipeline, way=way)
    frozen.apply()
    successor.place, successor.state = frozen.place, frozen.state
    return frozen, successor


@contextmanager
def _frozen(pipeline: Pipeline, way: str, *, then: str = "") -> Iterator[tuple[Windows, Callable[[], None]]]:
    """An applier that is frozen right before its commit of row 2. Rows 2 and 3 wait for its successor, which is given
    with what lets the frozen one go on and end. `then` are faults of the successor.
    """
    frozen, successor = _two(pipeline, way)
    pipeline.change(_insert(2))
    one = _Worker(frozen.apply)
    with _held(one, pipeline.folder / "gate", then=then) as thaw:
        pipeline.change(_insert(3))

        def thawed() -> None:
            thaw()
            assert one.error is None

        yield successor, thawed


@pytest.mark.parametrize("way", cases([DIRECT, DISTRIBUTED, MERGE], quick=[DIRECT, DISTRIBUTED]))
def test_a_commit_of_a_replaced_applier_that_lands_after_our_look_is_not_applied_again(
    pipeline: Pipeline, tmp_path: Path, way: str
) -> None:
    gate = tmp_path / "read"
    with _frozen(pipeline, way, then=f"{READ}=hold:{gate}@2") as (successor, thaw):
        worker = _Worker(successor.apply)
        worker.start()
        wait_until(lambda: faults.passages(READ) > 1, what="the successor has looked")
        thaw()
        gate.touch()
        worker.join()
    assert isinstance(worker.error, CommitConflict)
    assert pipeline.keys() == [1, 2]


@pytest.mark.parametrize("way", [DIRECT, DISTRIBUTED, MERGE])
def test_a_late_commit_of_a_replaced_applier_leaves_no_row_twice_in_silence(pipeline: Pipeline, way: str) -> None:
    with _frozen(pipeline, way) as (successor, thaw):
        # The last thing that happens before a commit.
        successor.lake._before_commit = thaw
        worker = _Worker(successor.apply)
        worker.start()
        worker.join()
    if way == MERGE:
        # A statement is based on whatever it finds.
        assert "rows may be there twice" in str(worker.error)
    else:
        assert isinstance(worker.error, CommitConflict)
        assert pipeline.keys() == [1, 2]


@slow
def test_a_late_commit_between_two_windows_of_the_successor_stops_the_table(pipeline: Pipeline, tmp_path: Path) -> None:
    frozen, successor = _two(pipeline, MERGE)
    for key in (2, 3):
        pipeline.change(_insert(key))
    with _held(_Worker(frozen.apply), tmp_path / "gate") as thaw:
        successor.apply(entries=1)
        thaw()
    # Its marker is that of the window which comes next.
    with pytest.raises(UnsupportedChange, match="rows may be there twice"):
        successor.apply()


def test_a_late_part_of_a_snapshot_doubles_no_row(pipeline: Pipeline, tmp_path: Path) -> None:
    heap = heap_of(pipeline, rows=24)
    for place in range(RANGES):
        heap.read(place)
    frozen, successor = _Parts(pipeline), _Parts(pipeline)
    assert frozen.apply(0, 1) == ""
    with _held(_Worker(lambda: frozen.apply(1, 3)), tmp_path / "gate") as thaw:
        # Parts are cut anew by each process.
        assert successor.apply(0, 2) == ""
        thaw()
    assert "rows may be there twice" in successor.apply(2, RANGES)
    heap.finish()
    pipeline.apply()
    assert_equal(pipeline.path(), heap.rows)


class _Parts:
    """An applier that applies chunks of the snapshot in the manifest of `pipeline`."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._options, self._store = pipeline.options(), pipeline.store
        self._lake = Lake(self._options, pipeline.store, before_commit=lambda: None)
        self._session = pipeline.spark.newSession()

    def apply(self, first: int, end: int) -> str:
        """Those from `first` to before `end`. Returns why they cannot be, empty when they are."""
        state = lake_tables(load_state(self._store), self._options.targets_of)["16385"]
        entries = [entry for entry, _ in read_entries(self._store, after_seq=state.generation_seq)]
        chunks = [
            Chunk(entry.seq, entry.body.snapshot_lsn, entry.body.segments, 0.0)
            for entry in entries
            if isinstance(entry.body, Snapshot)
        ]
        segments = tuple(segment for chunk in chunks[first:end] for segment in chunk.segments)
        window = Window(segments, chunks[end - 1].seq, chunks=tuple(chunks[:end]))
        lake, build = self._lake.table(state, self._session), self._lake.build(state, self._session)
        return SnapshotApply(self._options, self._store, lake, state, build=build).apply_part(window)[1]


def test_the_loop_takes_what_landed_late_for_applied_and_goes_on(pipeline: Pipeline) -> None:
    with _frozen(pipeline, DIRECT, then=f"{READ}=delay:3@2") as (_, thaw):
        late = threading.Timer(1.5, thaw)
        loop = threading.Thread(target=lambda: pipeline.apply(way=DIRECT))
        loop.start()
        wait_until(lambda: faults.passages(READ) > 1, what="the loop has looked")
        late.start()
        loop.join()
        late.join()
    assert pipeline.keys() == [1, 2, 3]
    assert [row.state for row in pipeline.reported().values()] == ["live"]
