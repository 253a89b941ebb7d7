"""A process that is killed inside a direct commit, or while it writes small files anew as one, leaves files that no
version names, and nothing else: the table is as it was, or as it must be, and the next process goes on from there.
"""

from pathlib import Path

import pytest

from sluice import faults
from sluice_spark.lake.commit_way import DIRECT
from sluice_spark.lake.direct.compaction import FILES_OF_A_TIER
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA, row
from tests.spark.processes import SMALL_JVM, run_applier
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.replays import by_delta_rs
from tests.spark.table_audit import check_checksum, check_files, live_files
from tests.spark.windows import Windows
from tests.support.extent import FULL, slow

POINTS = {
    "apply.direct.data_written": False,
    "apply.direct.changes_written": False,
    "apply.direct.vectors_written": False,
    "apply.commit.before": False,
    "apply.commit.after": True,
}
"""Whether the commit is there when the process is killed."""
QUICK = ("apply.direct.vectors_written",)
CASES = POINTS if FULL else QUICK
JOIN_POINTS = {
    "apply.join.before": False,
    "apply.join.data_written": False,
    # The first commit of the process is that of the window, the second one that of the joined files.
    "apply.commit.before@2": False,
    "apply.commit.after@2": True,
}


def _files(folder: Path) -> set[Path]:
    """Data and vectors, whoever needs them."""
    return {file for file in folder.iterdir() if file.suffix in (".parquet", ".bin")}


def _assert_rows(folder: Path, rows: list[dict[str, object]]) -> None:
    state = DeltaFolder(folder).state()
    for found in (state.rows(), by_delta_rs(folder, None)):
        plain = [{name: one[name] for name in rows[0]} for one in found]
        assert sorted(plain, key=str) == sorted(rows, key=str)
    check_files(state)
    check_checksum(DeltaFolder(folder), state.version)


def _ids(folder: Path) -> dict[int, int]:
    found = {one["id"]: number for number, _, one in DeltaFolder(folder).state().tracked_rows()}
    assert len(set(found.values())) == len(found)
    return found


def _collect_orphans(pipeline: Pipeline) -> None:
    folder = pipeline.path()
    pipeline.sql("VACUUM {t} RETAIN 0 HOURS")
    assert _files(folder) == live_files(DeltaFolder(folder).state()), "an orphan stays, or a live file went"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", CASES)
def test_a_killed_direct_commit_leaves_orphans_only_and_the_next_process_is_right(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    before = [row(1), row(2, 2), row(3), row(5)]
    after = [row(1, 11), row(3, 33), row(6), row(7)]
    pipeline.begin(SCHEMA, row(1), row(2), row(3), row(4))
    pipeline.change(Change("u", row(2, 2)), Change("d", old={"id": 4}), Change("i", row(5)))
    pipeline.apply(way=DIRECT)
    folder = pipeline.path()
    _assert_rows(folder, before)
    pipeline.set(enableRowTracking="true", enableChangeDataFeed="true")
    ids = _ids(folder)
    version, files = DeltaFolder(folder).versions()[-1], _files(folder)
    pipeline.change(
        Change("u", {"id": 1, "v": 11}, unchanged=("big", "at")),
        Change("d", old={"id": 2}),
        Change("u", {"id": 3, "v": 33}, unchanged=("big", "at")),
        Change("u", {"id": 6, "v": 0}, old={"id": 5}, unchanged=("big", "at")),
        Change("i", row(7)),
    )
    monkeypatch.setenv("SLUICE_FAULTS", f"{point}=crash")
    run = run_applier(pipeline.options(way=DIRECT, **SMALL_JVM))
    assert run.code == faults.CRASHED, run.output
    is_there = POINTS[point]
    assert DeltaFolder(folder).versions()[-1] == version + is_there
    _assert_rows(folder, after if is_there else before)
    written = _files(folder) - files
    assert written, "nothing was written before the kill"
    assert written.isdisjoint(live_files(DeltaFolder(folder).state())) == (not is_there)
    pipeline.applied(way=DIRECT)
    _assert_rows(folder, after)
    now = _ids(folder)
    assert [now[key] for key in (1, 3, 6)] == [ids[key] for key in (1, 3, 5)], "a row got another id"
    assert now[7] not in ids.values()
    if FULL:
        _collect_orphans(pipeline)
        _assert_rows(folder, after)
        assert _ids(folder) == now


@pytest.mark.timeout(600)
@slow
@pytest.mark.parametrize("point", JOIN_POINTS)
def test_a_killed_join_of_small_files_leaves_orphans_only_and_the_next_process_is_right(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The window before it is in the lake, whatever becomes of the files."""
    pipeline.begin(SCHEMA, row(0))
    windows = Windows(pipeline, way=DIRECT)
    windows.apply()
    folder, last = pipeline.path(), 0
    while len(DeltaFolder(folder).state().files) < FILES_OF_A_TIER - 1:
        last += 1
        # Each removes a row of the file before.
        windows.change(Change("i", row(last)), Change("u", {"id": last - 1, "v": 7}, unchanged=("big", "at")))
    rows = [*(row(key, 7) for key in range(last)), row(last)]
    _assert_rows(folder, rows)
    before = DeltaFolder(folder).state()
    pipeline.change(Change("i", row(90)))
    name, _, passage = point.partition("@")
    monkeypatch.setenv("SLUICE_FAULTS", f"{name}=crash" + (f"@{passage}" if passage else ""))
    run = run_applier(pipeline.options(way=DIRECT, **SMALL_JVM))
    assert run.code == faults.CRASHED, run.output
    is_there = JOIN_POINTS[point]
    assert DeltaFolder(folder).versions()[-1] == before.version + 1 + is_there
    rows.append(row(90))
    _assert_rows(folder, rows)
    assert (len(live_files(DeltaFolder(folder).state())) < len(live_files(before))) == is_there
    pipeline.change(Change("u", row(0, 8)), Change("d", old={"id": 1}))
    pipeline.applied(way=DIRECT)
    rows = [row(0, 8), *rows[2:]]
    _assert_rows(folder, rows)
    assert len(live_files(DeltaFolder(folder).state())) < len(live_files(before)), "the files were not joined"
    _collect_orphans(pipeline)
    _assert_rows(folder, rows)
