"""Commits without a Spark job: what is right once is right after many."""

import random
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sluice import faults
from sluice_spark.applied_window import Applied
from sluice_spark.lake.commit_way import DIRECT, CommitWay
from sluice_spark.lake.direct.joining import Joined, Joining
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.layout import TableLayout
from sluice_spark.lake.table import CHOSEN
from tests.spark.changes import INT8, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline, held, running
from tests.spark.lake import rows_in
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.table_audit import check_checksum, check_files
from tests.spark.windows import Windows
from tests.support.extent import slow

ITEMS = table_schema(column("id", 1, INT8, key=True), column("s", 2, TEXT))
MOST_FILES = 16 + 2


@slow
def test_files_stay_few_and_rows_right_over_many_windows(pipeline: Pipeline) -> None:
    chance = random.Random(11)
    rows: dict[int, str | None] = {number: f"row {number}" for number in range(500)}
    first: list[dict[str, object]] = [{"id": key, "s": text} for key, text in rows.items()]
    pipeline.begin(ITEMS, *first)
    windows = Windows(pipeline)
    windows.apply()
    for number in range(45):
        changes = []
        for _ in range(20):
            key = chance.randrange(700)
            if key not in rows:
                rows[key] = f"new {number}"
                changes.append(Change("i", {"id": key, "s": rows[key]}))
            elif chance.random() < 0.5:
                rows[key] = None
                changes.append(Change("u", {"id": key, "s": None}))
            else:
                del rows[key]
                changes.append(Change("d", old={"id": key}))
        assert windows.change(*changes).way == CommitWay(DIRECT)
        assert len(DeltaTable(pipeline.path()).file_uris()) <= MOST_FILES
    expected = [{"id": key, "s": text} for key, text in rows.items()]
    assert pipeline.rows() == sorted(expected, key=str)
    assert {item["operation"] for item in DeltaTable(pipeline.path()).history()} >= {"MERGE", "OPTIMIZE"}
    pipeline.applied()


@slow
def test_rows_that_take_no_space_in_a_file_are_not_joined_beyond_what_memory_holds(pipeline: Pipeline) -> None:
    pipeline.begin(ITEMS)
    windows = Windows(pipeline)
    windows.apply()
    text, at_once = "x" * 10_000, 700
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        for number in range(46):
            if number == 30:
                # A new process knows the files by their sizes on disk.
                windows.lake._direct.clear()
            changes = [Change("i", {"id": number * at_once + place, "s": text}) for place in range(at_once)]
            files = windows.change(*changes).files
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 250 << 20
    assert files is not None
    assert files < 32
    found = pipeline.spark.read.format("delta").load(str(pipeline.path()))
    counted = found.selectExpr("count(DISTINCT id)", "count(*)", "sum(length(s))").first()
    assert counted is not None
    assert tuple(counted) == (46 * at_once, 46 * at_once, 46 * at_once * len(text))


def test_a_table_falls_back_for_a_property_in_any_spelling_says_why_and_returns(pipeline: Pipeline) -> None:
    pipeline.begin(ITEMS, {"id": 1, "s": "a"})
    windows = Windows(pipeline)
    windows.apply()

    def applied(key: int) -> Applied:
        return windows.change(Change("i", {"id": key, "s": "b"}))

    first = applied(2)
    assert (first.way, first.files) == (CommitWay("direct"), len(DeltaTable(pipeline.path()).file_uris()))
    assert {"find", "write", "commit"} <= first.seconds.keys()
    pipeline.set(enableDeletionVectors="False")
    second = applied(3)
    assert (second.way, second.files) == (CommitWay("merge", "deletion vectors are off"), None)
    assert "commit" in second.seconds
    pipeline.set(enableDeletionVectors="TRUE")
    assert applied(4).way == CommitWay("direct")
    assert len(pipeline.rows()) == 4


@slow
def test_a_table_that_is_to_be_merged_says_that_it_was_chosen(pipeline: Pipeline) -> None:
    pipeline.begin(ITEMS, {"id": 1, "s": "a"})
    windows = Windows(pipeline, way="merge")
    assert windows.apply().way == CommitWay()
    assert windows.change(Change("u", {"id": 1, "s": "b"})).way == CommitWay("merge", CHOSEN)


def test_a_join_whose_answer_was_lost_keeps_its_files(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The join lands, its answer is lost, and the attempt that follows conflicts with it."""
    pipeline.begin(ITEMS, {"id": 0, "s": "row 0"})
    windows = Windows(pipeline)
    windows.apply()
    lost = []
    commit = DeltaTransaction.commit

    def landed_unseen(own: DeltaTransaction, actions: Any, **how: Any) -> int:
        if how["operation"] == "optimize":
            lost.append(commit(DeltaTransaction(windows.session, str(pipeline.path())), actions, **how))
        return commit(own, actions, **how)

    monkeypatch.setattr(DeltaTransaction, "commit", landed_unseen)
    keys = range(1, 40)
    for key in keys:
        windows.change(Change("i", {"id": key, "s": f"row {key}"}))
        if lost:
            break
    assert lost
    expected = [{"id": key, "s": f"row {key}"} for key in range(key + 1)]
    assert pipeline.rows() == sorted(expected, key=str)
    assert windows.change(Change("u", {"id": 0, "s": "later"})).way == CommitWay(DIRECT)
    assert len(pipeline.rows()) == len(expected)


def test_windows_go_on_while_files_are_joined_and_rows_that_go_meanwhile_stay_away(
    pipeline: Pipeline,
) -> None:
    expected: dict[object, object] = {number: f"row {number}" for number in range(20)}
    pipeline.begin(ITEMS, *({"id": key, "s": text} for key, text in expected.items()))
    written = "apply.join.data_written"

    def joins() -> list[dict[str, Any]]:
        return [one for one in DeltaTable(pipeline.path()).history() if one["operation"] == "OPTIMIZE"]

    with held(pipeline.folder / "go", written) as let_go, running(pipeline, workers=1) as work:

        def window(*changes: Change) -> None:
            work.takes(pipeline.change(*changes))

        while not faults.passages(written):
            key = len(expected)
            expected |= {key: "a", key + 1: "b"}
            window(Change("i", {"id": key, "s": "a"}), Change("i", {"id": key + 1, "s": "b"}))
        # Of the files that are joined: one row of the first, all of the second, and one that changes.
        window(*(Change("d", old={"id": key}) for key in (20, 22, 23)), Change("u", {"id": 24, "s": "c"}))
        expected = {key: text for key, text in expected.items() if key not in {20, 22, 23}} | {24: "c"}
        assert joins() == []
        let_go()
        while not joins():
            key = max(int(str(key)) for key in expected) + 1
            expected[key] = "d"
            window(Change("i", {"id": key, "s": "d"}))
    (joined,) = joins()
    state = DeltaFolder(pipeline.path()).state(joined["version"])
    check_files(state)
    check_checksum(DeltaFolder(pipeline.path()), joined["version"])
    assert {row["id"]: row["s"] for row in pipeline.rows()} == expected
    assert {row["id"]: row["s"] for row in DeltaFolder(pipeline.path()).state().rows()} == expected
    assert len(DeltaTable(pipeline.path()).file_uris()) < 16
    # Somebody who reads the version before the join finds the same rows.
    after, before = (rows_in(pipeline.path(), version=joined["version"] - less) for less in (0, 1))
    assert sorted(map(str, after)) == sorted(map(str, before))


@slow
@pytest.mark.parametrize("what", ["other columns", "vacuum"])
def test_what_was_joined_and_cannot_be_taken_in_is_deleted(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    pipeline.begin(ITEMS, {"id": 0, "s": "a"})
    windows = Windows(pipeline)
    windows.apply()
    ready, found = Joining.ready, []

    def disturbed(self: Joining, version: int, beside: Executor | None) -> Joined | None:
        joined = ready(self, version, beside)
        if joined is not None:
            found.append(joined)
            if what == "vacuum":
                (pipeline.path() / joined.written.paths[0]).unlink()
            else:
                joined = replace(joined, layout=TableLayout((), {}))
        return joined

    monkeypatch.setattr(Joining, "ready", disturbed)
    for number in range(1, 17):
        windows.change(Change("i", {"id": number, "s": "b"}))
    assert found
    assert not any((pipeline.path() / joined.written.paths[0]).exists() for joined in found)
    assert len(DeltaTable(pipeline.path()).file_uris()) == len(pipeline.rows()) == 17
