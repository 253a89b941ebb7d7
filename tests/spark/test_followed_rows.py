"""Rows of lake tables that track them keep their ids, and readers of changes see what happened to each row, in
every way of committing.
"""

import json
import os
from collections import Counter

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from tests.spark.conftest import Pipeline
from tests.spark.followed_rows import Feed, FollowedRows, Row, feed_of, without_no_change
from tests.spark.protocol_reader import DeltaFolder, State
from tests.spark.replays import seq_of
from tests.spark.table_audit import check_checksum, check_files
from tests.spark.windows import Windows
from tests.support.extent import FULL, cases, slow

_BOTH = "'delta.enableRowTracking' = 'true', 'delta.enableChangeDataFeed' = 'true'"
FIRST = int(os.environ.get("WAYS_FIRST", "1"))
SEEDS = range(FIRST, FIRST + (int(os.environ.get("WAYS_SEEDS", "2")) if FULL else 1))


def _turn(pipeline: Pipeline, value: str) -> None:
    pipeline.set(enableRowTracking=value, enableChangeDataFeed=value)


class Followed:
    """Ids by the names of rows; a row that is there in two versions has one id, and no id has two rows."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.ids: dict[str, int] = {}

    def check(self, expected: dict[str, Row]) -> State:
        state = DeltaFolder(self.pipeline.path()).state()
        check_files(state)
        found = state.tracked_rows()
        assert {row["name"]: {n: row[n] for n in ("id", "name", "v")} for _, _, row in found} == expected
        assert len({number for number, _, _ in found}) == len(found), "two rows have one id"
        assert all(version <= state.version for _, version, _ in found)
        highest = json.loads(state.domains["delta.rowTracking"])["rowIdHighWaterMark"]
        assert max((number for number, _, _ in found), default=-1) <= highest
        known = {number: name for name, number in self.ids.items()}
        for number, _, row in found:
            assert self.ids.get(row["name"], number) == number, f"{row['name']} got another id"
            assert known.get(number, row["name"]) == row["name"], f"{row['name']} got the id of another row"
            self.ids[row["name"]] = number
        return state


def by_spark(session: SparkSession, pipeline: Pipeline) -> dict[str, tuple[int, int]]:
    columns = "name", "_metadata.row_id", "_metadata.row_commit_version"
    rows = session.read.format("delta").load(str(pipeline.path())).select(*columns).collect()
    assert len({row[1] for row in rows}) == len(rows)
    return {row[0]: (row[1], row[2]) for row in rows}


def changes_by_spark(session: SparkSession, pipeline: Pipeline, first: int, last: int) -> dict[int, Feed]:
    reader = session.read.format("delta").option("readChangeFeed", "true")
    frame = reader.option("startingVersion", first).option("endingVersion", last).load(str(pipeline.path()))
    found: dict[int, Feed] = {number: Counter() for number in range(first, last + 1)}
    for row in frame.select("_commit_version", "_change_type", "id", "name", "v").collect():
        found[row[0]][tuple(row[1:])] += 1
    return {number: without_no_change(changes) for number, changes in found.items()}


def check_feed(session: SparkSession, pipeline: Pipeline, rows: FollowedRows, first: int, last: int) -> None:
    """What Spark reads as the changes of each version is what the rows before and after it say."""
    table, found = DeltaFolder(pipeline.path()), changes_by_spark(session, pipeline, first, last)
    before = rows.by_seq[min(rows.by_seq)]
    for version in range(first, last + 1):
        seq = seq_of(table.commit(version))
        after = before if seq is None else rows.by_seq[seq]
        assert found[version] == feed_of(before, after), f"version {version}"
        before = after


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", cases([DIRECT, DISTRIBUTED, MERGE], quick=[DIRECT]))
def test_rows_keep_their_ids_and_readers_see_every_change(pipeline: Pipeline, way: str, seed: int) -> None:
    # Parts of a window do not know of each other that a row went from one key to another.
    rows = FollowedRows(pipeline, seed, moves=way != DISTRIBUTED)
    windows = Windows(pipeline, way=way, max_memory_bytes=20_000 if way == DISTRIBUTED else 1 << 26)
    windows.apply()
    session = windows.session
    _turn(pipeline, "true")
    first = pipeline.version() + 1
    followed = Followed(pipeline)
    followed.check(rows.rows)
    for number in range(14 if FULL else 8):
        only = {2: "new", 4: "gone"}.get(number, "")
        rows.window(changes=3 if number % 2 else 12, truncates=number == 5, only=only)
        applied = windows.apply()
        assert applied.way.name == way, applied.way
        followed.check(rows.rows)
        if number == 3:
            pipeline.sql("OPTIMIZE {t}")
            followed.check(rows.rows)
    table = DeltaFolder(pipeline.path())
    last = table.versions()[-1]
    pipeline.sql("REORG TABLE {t} APPLY (PURGE)")
    followed.check(rows.rows)
    ids = {number: version for _, (number, version) in by_spark(session, pipeline).items()}
    assert {number: version for number, version, _ in table.state().tracked_rows()} == ids
    for version in range(first, last + 1):
        check_checksum(table, version)
    check_feed(session, pipeline, rows, first, last)


def test_a_window_of_a_table_that_tracks_its_rows_runs_no_job(pipeline: Pipeline) -> None:
    rows = FollowedRows(pipeline, 1)
    windows = Windows(pipeline, way=DIRECT)
    windows.apply()
    _turn(pipeline, "true")
    followed = Followed(pipeline)
    rows.window()
    windows.apply()
    tracker = pipeline.spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    for only in ("", "new", "gone"):
        rows.window(only=only)
        assert windows.apply().way.name == DIRECT
        followed.check(rows.rows)
    assert set(tracker.getJobIdsForGroup()) == before


@slow
@pytest.mark.timeout(600)
def test_files_that_are_joined_keep_ids_and_versions_of_rows_and_say_nothing_of_changes(
    pipeline: Pipeline, seed: int
) -> None:
    rows = FollowedRows(pipeline, seed)
    windows = Windows(pipeline, way=DIRECT)
    windows.apply()
    _turn(pipeline, "true")
    first = pipeline.version() + 1
    followed = Followed(pipeline)
    table = DeltaFolder(pipeline.path())
    joins = 0
    while joins < (2 if FULL else 1):
        before = {row["name"]: version for _, version, row in table.state().tracked_rows()}
        old = dict(rows.rows)
        made = table.versions()[-1] + 1
        rows.window(changes=4)
        assert windows.apply().way.name == DIRECT
        state = followed.check(rows.rows)
        joins += state.version - made
        for _, version, row in state.tracked_rows():
            if old.get(row["name"]) == rows.rows[row["name"]] and version != made:
                assert version == before[row["name"]], "a row that was copied says that it was changed"
    last = table.versions()[-1]
    check_feed(windows.session, pipeline, rows, first, last)
    with pytest.raises(DeltaError, match="Column mapping is not supported"):
        # Its readers of rows support it.
        DeltaTable(pipeline.path()).load_cdf(starting_version=first, ending_version=last)
    assert pipeline.rows() == sorted(rows.rows.values(), key=str)
    pipeline.sql("OPTIMIZE {t}")
    pipeline.sql("VACUUM {t} RETAIN 0 HOURS")
    followed.check(rows.rows)


BETWEEN = {
    "files are optimized": ("on", "OPTIMIZE {t}"),
    "files are purged": ("on", "REORG TABLE {t} APPLY (PURGE)"),
    "both are turned on": ("never", "ALTER TABLE {t} SET TBLPROPERTIES (" + _BOTH + ")"),
    "both are turned on again": ("off", "ALTER TABLE {t} SET TBLPROPERTIES (" + _BOTH + ")"),
    "both are turned off": ("on", "ALTER TABLE {t} SET TBLPROPERTIES (" + _BOTH.replace("true", "false") + ")"),
    "the feature is dropped": ("on", "ALTER TABLE {t} DROP FEATURE rowTracking"),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", [DIRECT, DISTRIBUTED] if FULL else [DIRECT])
@pytest.mark.parametrize("case", cases(BETWEEN, quick=[]))
def test_whatever_somebody_does_right_before_a_commit_every_row_keeps_one_id(
    pipeline: Pipeline, way: str, case: str
) -> None:
    state, statement = BETWEEN[case]
    rows = FollowedRows(pipeline, 5, moves=way != DISTRIBUTED)
    windows = Windows(pipeline, way=way, max_memory_bytes=20_000 if way == DISTRIBUTED else 1 << 26)
    windows.apply()
    followed = Followed(pipeline)
    if state != "never":
        _turn(pipeline, "true")
    rows.window(changes=6)
    windows.apply()
    if state != "never":
        followed.check(rows.rows)
    if state == "off":
        _turn(pipeline, "false")
    left = [statement]

    def act() -> None:
        if left:
            pipeline.sql(left.pop())

    windows.lake._before_commit = act
    rows.window(changes=12)
    applied = windows.apply()
    assert not left
    assert applied.way.name == way
    is_on = case not in ("both are turned off", "the feature is dropped")
    if is_on and state != "on":
        # From here on: rows had no ids before.
        followed.ids.clear()
    for _ in range(2):
        if is_on:
            followed.check(rows.rows)
        assert {row["name"]: row for row in pipeline.rows()} == rows.rows
        check_files(DeltaFolder(pipeline.path()).state())
        rows.window(changes=6)
        assert windows.apply().way.name == way
