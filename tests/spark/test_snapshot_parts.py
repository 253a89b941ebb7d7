"""A snapshot of several entries goes part by part into a table beside the lake table, while the rest is still read, and
into the lake table in one commit. Whatever rows do meanwhile, whoever is killed, and whatever becomes of the files.
"""

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from sluice.contract import envelope
from sluice.contract.chunks import ENDLESS
from sluice.errors import ManifestCorrupt
from sluice.manifest.reader import load_state, read_entries
from sluice.manifest.targets import lake_tables
from sluice_spark.distributed.touched_keys import TouchedSpan
from sluice_spark.lake.build import PREFIX, BuildTable
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.lake.opening import Lake
from sluice_spark.lake.table import LakeTable
from sluice_spark.maintenance.planner import Turn
from sluice_spark.maintenance.tasks import SETTINGS, Call, TableTurn
from sluice_spark.read.window import PendingChanges
from sluice_spark.snapshot_apply import SnapshotApply
from tests.spark.changes import INT4, Change, column
from tests.spark.conftest import Pipeline
from tests.spark.heap import RANGES, Heap
from tests.spark.lake import rows_in
from tests.spark.model import ID, SCHEMA, by_key, row
from tests.spark.processes import SMALL_JVM, run_applier
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.replays import by_delta_rs
from tests.spark.table_audit import check_checksum, check_files, live_files
from tests.spark.windows import Windows
from tests.support.extent import FULL, cases, slow

POINTS = {
    "in a part, before its commit": "apply.commit.before=crash",
    "in a part, behind its commit": "apply.commit.after=crash",
    "in a later part": "apply.commit.after=crash@3",
    "before the exchange": "apply.exchange.prepared=crash",
    "behind the exchange": "apply.exchange.after=crash",
}


@pytest.fixture
def seed() -> int:
    """SEED=... for another history."""
    return int(os.environ.get("SEED", "7"))


def _vacuum(pipeline: Pipeline) -> None:
    session = pipeline.spark.newSession()
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    table = LakeTable(session, str(pipeline.path()), app_id="none", before_commit=lambda: None)
    table.place = ExaminedVersion(table.recorded().version)
    turn = TableTurn(table, Call(session), before_commit=lambda: None, others=())
    turn.run(Turn.VACUUM, retention_seconds=7200)


def heap_of(pipeline: Pipeline, *, rows: int = 8) -> Heap:
    """A table with so many rows, of which the first eight change."""
    heap = Heap(empty=pipeline.manifest)
    for key in range(rows):
        heap.rows[key], heap.blocks[key] = row(key, big=f"b{key}"), key % 8
    return heap


@pytest.fixture
def heap(pipeline: Pipeline) -> Heap:
    return heap_of(pipeline)


@pytest.fixture
def choice(seed: int) -> random.Random:
    return random.Random(seed)


def _change(heap: Heap, choice: random.Random, step: int, count: int) -> None:
    for number in range(count):
        change = heap.write(choice.choice, 100 * step + number)
        if change is not None:
            heap.manifest.transaction([change], SCHEMA)


def read_all(pipeline: Pipeline, heap: Heap, choice: random.Random, *, apply: bool = True) -> None:
    """The parts in any order, each applied, with changes between them."""
    for step, place in enumerate(choice.sample(range(RANGES), RANGES)):
        if step:
            _change(heap, choice, step, choice.randint(0, 6))
        heap.read(place)
        if apply:
            pipeline.apply()


def _builds(pipeline: Pipeline) -> list[Path]:
    return [path for path in pipeline.path().glob(f"{PREFIX}*") if list(path.glob("_delta_log/*.json"))]


def _from_parts(pipeline: Pipeline) -> list[Path]:
    """Files of the lake table that came with parts."""
    return [file for file in live_files(DeltaFolder(pipeline.path()).state()) if PREFIX in str(file)]


def _becomes_whole(pipeline: Pipeline, heap: Heap, **options: Any) -> None:
    """No part is missing any more, and the lake table is what was read."""
    heap.finish()
    pipeline.applied(**options)
    assert_equal(pipeline.path(), heap.rows)


def _is_copied_anew(pipeline: Pipeline, heap: Heap, **options: Any) -> None:
    """The rows of the parts are there, and their files did not become those of the lake table."""
    _becomes_whole(pipeline, heap, **options)
    assert not _from_parts(pipeline)


def _plain_row(one: dict[str, Any]) -> dict[str, Any]:
    return {name: one[name] for name in ("id", "v", "big", "at")}


def assert_equal(folder: Path, expected: dict[int, dict[str, Any]]) -> None:
    """By three readers, with every file as the log describes it."""
    state = DeltaFolder(folder).state()
    for found in (rows_in(folder), state.rows(), by_delta_rs(folder, None)):
        assert by_key(list(map(_plain_row, found))) == expected
    check_files(state)
    check_checksum(DeltaFolder(folder), state.version)


@pytest.mark.parametrize("number", cases(range(12), quick=[0]))
def test_a_table_that_changes_while_it_is_read_is_equal_to_the_source_by_every_reader(
    pipeline: Pipeline, number: int, heap: Heap, seed: int
) -> None:
    choice = random.Random(seed * 100 + number)
    _change(heap, choice, 0, 8)
    for generation in range(2):
        before = {key: dict(one) for key, one in heap.rows.items()}
        if generation:
            heap.begin_again()
        read_all(pipeline, heap, choice)
        if generation:
            assert_equal(pipeline.path(), before)
        else:
            assert not DeltaTable.is_deltatable(str(pipeline.path())), "a table that is not whole can be read"
        assert len(_builds(pipeline)) == 1, "nothing was applied while the snapshot was read"
        began = pipeline.version() if generation else None
        _becomes_whole(pipeline, heap)
        for version in range(began, pipeline.version() + 1) if began is not None else ():
            found = by_key([_plain_row(one) for one in rows_in(pipeline.path(), version=version)])
            assert found in (before, heap.rows), f"readers of version {version} see half of the snapshot"
        first = DeltaTable(str(pipeline.path()), version=0).metadata()
        assert first.configuration["sluice.table"] == "public.items", "what it says came in a commit of its own"
        assert not _builds(pipeline)
        _change(heap, choice, 9, 5)
        pipeline.apply()
        assert_equal(pipeline.path(), heap.rows)
    assert dict(pipeline.sql("SELECT id, v FROM {t}")) == _v(heap)


def _v(heap: Heap) -> dict[int, int]:
    return {key: one["v"] for key, one in heap.rows.items()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", cases(POINTS, quick=[]))
def test_an_applier_that_is_killed_costs_a_part_at_most_and_the_table_is_whole(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, place: str, choice: random.Random
) -> None:
    # Rows with a key above 7 never change: some of each part stay.
    heap = heap_of(pipeline, rows=24)
    read_all(pipeline, heap, choice, apply=False)
    heap.finish()
    options = pipeline.options(max_window_bytes=1, **SMALL_JVM)
    monkeypatch.setenv("SLUICE_FAULTS", POINTS[place])
    assert run_applier(options).code in (-9, 137)
    monkeypatch.delenv("SLUICE_FAULTS")
    written = {file.name for file in pipeline.path().glob(f"{PREFIX}*/**/part-*.parquet")}
    ended = run_applier(options)
    assert ended.code == 0, ended.output
    assert_equal(pipeline.path(), heap.rows)
    live = {file.name for file in live_files(DeltaFolder(pipeline.path()).state())}
    if place != "in a part, before its commit":
        assert live & written, "what the killed process had applied was applied again"


@slow
def test_rows_are_merged_by_key_where_the_keys_that_changed_do_not_fit_in_memory(
    pipeline: Pipeline, heap: Heap, choice: random.Random
) -> None:
    read_all(pipeline, heap, choice, apply=False)
    heap.finish()

    def too_many(build: BuildTable) -> None:
        build.touched[build.folder.name] = TouchedSpan(build.table.app_id, 1 << 62, (), 1 << 60)

    with _lake(pipeline) as lake:
        _bring_parts(pipeline, lake, before=too_many)
    pipeline.apply()
    assert_equal(pipeline.path(), heap.rows)
    assert _from_parts(pipeline)


@contextmanager
def _lake(pipeline: Pipeline) -> Iterator[Lake]:
    lake = Lake(pipeline.options(), pipeline.store, before_commit=lambda: None)
    try:
        yield lake
    finally:
        lake.close()


def _bring_parts(pipeline: Pipeline, lake: Lake, *, before: Callable[[BuildTable], None] = lambda build: None) -> None:
    """All parts that the manifest has of the newest generation, as small as they can be."""
    states = lake_tables(load_state(pipeline.store), pipeline.options().targets_of)
    state, session = states[ID], pipeline.spark.newSession()
    pending = PendingChanges(state.generation, state.generation_seq, state.generation_seq)
    for entry, _ in read_entries(pipeline.store, after_seq=0):
        pending.take_in(entry, ID, through_lsn=entry.from_lsn)
    end = 1 << 62
    while (window := pending.next_window(max_bytes=1, until_seq=end, read_lsn=end)) is not None and window.is_part:
        build, table = lake.build(state, session), lake.table(state, session)
        before(build)
        assert not SnapshotApply(pipeline.options(), pipeline.store, table, state, build=build).apply_part(window)[1]
        pending.done(window)


@slow
def test_a_snapshot_that_begins_again_leaves_no_keys_of_the_one_before(
    pipeline: Pipeline, heap: Heap, choice: random.Random
) -> None:
    _change(heap, choice, 0, 8)
    with _lake(pipeline) as lake:
        read_all(pipeline, heap, choice, apply=False)
        _bring_parts(pipeline, lake)
        assert list(pipeline.store.list("apply/scratch/"))
        heap.begin_again()
        heap.read(0)
        _bring_parts(pipeline, lake)
        assert not list(pipeline.store.list("apply/scratch/"))


@slow
def test_a_resync_with_other_columns_takes_them_over_and_columns_are_added_later(
    pipeline: Pipeline, heap: Heap, choice: random.Random
) -> None:
    read_all(pipeline, heap, choice)
    _becomes_whole(pipeline, heap)
    more = tuple(column(f"c{number}", 10 + number, INT4, missing=str(number)) for number in range(6))
    wider = replace(SCHEMA, version=2, columns=(*SCHEMA.columns, *more[:5]))
    rows = [{**one, **{f"c{number}": number for number in range(5)}} for one in heap.rows.values()]
    pipeline.manifest.table(wider, generation=2)
    for half in (rows[:4], rows[4:]):
        pipeline.manifest.snapshot(half, wider, generation=2, final=False)
    pipeline.apply()
    pipeline.manifest.snapshot([], wider, generation=2)
    pipeline.apply()
    assert _plain(pipeline.path()) == _plain_of(rows)
    again = replace(wider, version=3, columns=(*wider.columns, more[5]))
    pipeline.evolve(again, generation=2)
    new = {**rows[0], "id": 99, "c5": 7}
    pipeline.change(Change("i", new))
    pipeline.apply()
    assert _plain(pipeline.path()) == _plain_of([*({**one, "c5": 5} for one in rows), new])


def _plain(folder: Path) -> list[dict[str, Any]]:
    found = rows_in(folder)
    for reader in (DeltaFolder(folder).state().rows(), by_delta_rs(folder, None)):
        assert len(reader) == len(found)
    return _plain_of(found)


def _plain_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(({name: value for name, value in one.items() if name != "at"} for one in rows), key=str)


DAMAGES = ["lost file", "shorter file", "lost vector", "lost folder"]


@pytest.mark.parametrize("kind", cases(DAMAGES, quick=[]))
def test_a_part_that_is_lost_or_damaged_is_applied_again_from_the_spool(
    pipeline: Pipeline, kind: str, heap: Heap, choice: random.Random
) -> None:
    read_all(pipeline, heap, choice)
    (build,) = _builds(pipeline)
    suffix = ".bin" if kind == "lost vector" else ".parquet"
    file = min(file for file in live_files(DeltaFolder(build).state()) if file.suffix == suffix)
    if kind == "lost folder":
        shutil.rmtree(build)
        _becomes_whole(pipeline, heap)
        return
    if kind == "shorter file":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    _is_copied_anew(pipeline, heap)


def test_a_chunk_that_is_not_what_the_manifest_describes_is_named_and_commits_nothing(pipeline: Pipeline) -> None:
    pipeline.manifest.table(SCHEMA)
    (segment,) = pipeline.manifest.chunk([row(1)], SCHEMA, (0, 8)).segments
    pipeline.change(Change("u", row(1, 2)))
    pipeline.manifest.chunk([row(6)], SCHEMA, (8, ENDLESS))
    pipeline.manifest.finish(SCHEMA)
    pipeline.store.put(segment.key, b"other bytes")
    with pytest.raises(ManifestCorrupt, match=segment.key):
        Windows(pipeline).apply()
    assert not DeltaTable.is_deltatable(str(pipeline.path()))


@slow
def test_files_that_go_between_two_parts_cost_the_parts_and_not_the_table(
    pipeline: Pipeline, heap: Heap, choice: random.Random
) -> None:
    heap.read(0)
    heap.read(1)
    pipeline.apply()
    (build,) = _builds(pipeline)
    for file in list(build.glob("**/part-*.parquet")):
        file.unlink()
    pipeline.change(*(Change("u", dict(one, v=5)) for one in heap.rows.values()))
    heap.rows = {key: dict(one, v=5) for key, one in heap.rows.items()}
    heap.read(2)
    _change(heap, choice, 1, 4)
    heap.read(3)
    _becomes_whole(pipeline, heap)


@slow
@pytest.mark.parametrize("changed", [False, True], ids=["no change", "changes"])
@pytest.mark.parametrize("begun", [False, True], ids=["with fewer", "with more"])
def test_parts_that_were_begun_with_fewer_or_more_columns_are_not_gone_on_with(
    pipeline: Pipeline, begun: bool, changed: bool, heap: Heap, choice: random.Random
) -> None:
    """The setting that adds columns is changed by a restart between two parts. Without changes the rows are added
    and no window compares their columns.
    """
    heap.read(0)
    pipeline.apply(metadata_columns=begun)
    assert len(_builds(pipeline)) == 1
    if changed:
        _change(heap, choice, 1, 4)
    for place in (1, 2, 3):
        heap.read(place)
        pipeline.apply(metadata_columns=not begun)
    _is_copied_anew(pipeline, heap, metadata_columns=not begun)
    assert (envelope.LSN in pipeline.rows(metadata=True)[0]) is not begun


@slow
@pytest.mark.parametrize("there", [False, True], ids=["first snapshot", "resync"])
@pytest.mark.parametrize("rows", [0, 3], ids=["empty", "filled again"])
def test_a_truncate_between_two_chunks_leaves_no_row_from_before_it(
    pipeline: Pipeline, rows: int, there: bool, heap: Heap, choice: random.Random
) -> None:
    """Ingest reads such a table anew. Whoever made the entries, no row from before is shown as the source's."""
    if there:
        read_all(pipeline, heap, choice)
        _becomes_whole(pipeline, heap)
        heap.begin_again()
    heap.read(0)
    pipeline.apply()
    heap.rows.clear()
    heap.blocks.clear()
    pipeline.change(Change("t"))
    for key in range(rows):
        heap.rows[key], heap.blocks[key] = row(key, 9, f"n{key}"), 2 * key
        pipeline.change(Change("i", dict(heap.rows[key])))
    for place in (1, 2, 3):
        heap.read(place)
        pipeline.apply()
    _becomes_whole(pipeline, heap)


@slow
def test_a_changelog_has_each_row_of_a_snapshot_in_chunks_once_and_no_change_between(
    pipeline: Pipeline, heap: Heap, choice: random.Random
) -> None:
    log = {"public.items": {"targets": [{"kind": "changelog"}]}}
    for step, place in enumerate(choice.sample(range(RANGES), RANGES)):
        if step:
            _change(heap, choice, step, 6)
        heap.read(place)
        pipeline.apply(tables=log)
    heap.finish()
    pipeline.apply(tables=log)
    found = pipeline.rows(metadata=True)
    assert by_key(list(map(_plain_row, found))) == heap.rows
    assert {(one[envelope.OP], one[envelope.LSN]) for one in found} == {(envelope.OP_INSERT, heap.last_lsn)}


@slow
@pytest.mark.parametrize("stated", ["by the lake table", "by the configuration"])
def test_files_that_a_vacuum_may_remove_are_copied(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, stated: str, heap: Heap, choice: random.Random
) -> None:
    """Half of the retention is the limit, whoever states it: here no time, or half an hour."""
    for place in range(RANGES):
        heap.read(place)
    _becomes_whole(pipeline, heap)
    if stated == "by the lake table":
        pipeline.set(deletedFileRetentionDuration="interval 0 hours")
    else:
        later = SimpleNamespace(time=lambda: time.time() + 2000)
        monkeypatch.setattr("sluice_spark.lake.build.time", later)
    heap.begin_again()
    read_all(pipeline, heap, choice)
    _is_copied_anew(pipeline, heap, vacuum_seconds=7 * 86400.0 if stated == "by the lake table" else 3600.0)


@slow
def test_a_lake_table_that_cannot_have_the_files_gets_the_rows(
    pipeline: Pipeline, heap: Heap, choice: random.Random
) -> None:
    read_all(pipeline, heap, choice, apply=False)
    _becomes_whole(pipeline, heap)
    pipeline.set(enableDeletionVectors="false")
    heap.begin_again()
    read_all(pipeline, heap, choice)
    heap.finish()
    pipeline.apply()
    assert {one["id"]: one["v"] for one in pipeline.rows()} == _v(heap)


@slow
def test_a_snapshot_that_begins_again_leaves_nothing_of_the_one_before(
    pipeline: Pipeline, heap: Heap, choice: random.Random
) -> None:
    heap.read(0)
    heap.read(1)
    pipeline.apply()
    (first,) = _builds(pipeline)
    heap.begin_again()
    read_all(pipeline, heap, choice)
    assert not [path for path in first.rglob("*") if path.is_file()], "files that no VACUUM will see"
    _becomes_whole(pipeline, heap)


@slow
def test_vacuum_removes_what_a_crash_left_of_parts_and_nothing_of_the_table(
    pipeline: Pipeline, heap: Heap, choice: random.Random
) -> None:
    read_all(pipeline, heap, choice)
    (build,) = _builds(pipeline)
    kept = pipeline.folder / "kept"
    shutil.copytree(build / "_delta_log", kept)
    _becomes_whole(pipeline, heap)
    shutil.copytree(kept, build / "_delta_log", dirs_exist_ok=True)
    (build / "orphan.parquet").write_bytes(b"orphan")
    for file in pipeline.path().rglob("*.*"):
        os.utime(file, (1, 1))
    _vacuum(pipeline)
    assert not _builds(pipeline)
    assert not (build / "orphan.parquet").exists()
    assert_equal(pipeline.path(), heap.rows)
    assert DeltaTable(pipeline.path()).file_uris()
    if FULL:
        _change(heap, choice, 11, 4)
        pipeline.apply()
        assert_equal(pipeline.path(), heap.rows)
