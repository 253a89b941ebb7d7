"""A column that comes with a default has it in every row that is older, in one commit and without a job of Spark."""

from pathlib import Path

import pytest

from sluice_spark.lake.commit_way import DIRECT, MERGE
from sluice_spark.lake.direct import commit
from tests.spark.changes import INT4, INT4_ARRAY, NUMERIC, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.replays import by_delta_rs, way_of
from tests.spark.table_audit import check_checksum, check_files
from tests.spark.windows import Windows
from tests.support.extent import cases

FIRST = table_schema(column("id", 1, INT4, key=True), column("s", 2, TEXT))
WIDER = table_schema(
    *FIRST.columns,
    column("n", 3, INT4, missing="7"),
    column("t", 4, TEXT, missing="it's ${x}"),
    column("a", 5, INT4_ARRAY, missing="{1,NULL,3}"),
    column("m", 6, NUMERIC, typmod=((12 << 16) | 2) + 4, missing="1.50"),
    version=2,
)


def _evolved(folder: Path) -> tuple[int, str]:
    """The version that brought the columns, and the way of its commit."""
    table = DeltaFolder(folder)
    for version in table.versions():
        actions = table.commit(version)
        if any(one["txn"]["appId"].endswith("/schema") for one in actions if "txn" in one):
            return version, way_of(next(one["commitInfo"] for one in actions if "commitInfo" in one))
    raise AssertionError("no commit brought the columns")


@pytest.mark.parametrize("way", cases([DIRECT, MERGE], quick=[DIRECT]))
def test_rows_that_are_older_than_a_column_have_its_default_and_keep_their_ids(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A table that is too large is left to Spark, which does not keep ids."""
    if way == MERGE:
        monkeypatch.setattr(commit, "FILLED_BYTES", 0)
    pipeline.begin(FIRST, *({"id": key, "s": f"row {key}"} for key in range(6)))
    windows = Windows(pipeline, way=DIRECT)
    windows.apply()
    folder = pipeline.path()
    if way == DIRECT:
        pipeline.set(enableRowTracking="true", enableChangeDataFeed="true")
    windows.change(Change("u", {"id": 1, "s": "changed"}), Change("d", old={"id": 2}))
    state = DeltaFolder(folder).state()
    ids = {row["id"]: one for one, _, row in state.tracked_rows()} if way == DIRECT else {}
    pipeline.evolve(WIDER)
    pipeline.change(Change("i", {"id": 9, "s": "new", "n": None, "t": "x", "a": None, "m": None}))
    pipeline.applied(way=DIRECT)
    table, (version, made) = DeltaFolder(folder), _evolved(folder)
    assert made == way
    filled = table.state(version)
    texts = {0: "row 0", 1: "changed", 3: "row 3", 4: "row 4", 5: "row 5"}
    for rows in (filled.rows(), by_delta_rs(folder, version)):
        found = {row["id"]: (row["s"], row["n"], row["t"], row["a"], str(row["m"])) for row in rows}
        assert found == {key: (text, 7, "it's ${x}", [1, None, 3], "1.50") for key, text in texts.items()}
    check_files(filled)
    check_checksum(table, version)
    assert {row["id"]: row["n"] for row in pipeline.rows()} == {**dict.fromkeys(texts, 7), 9: None}
    if way == DIRECT:
        assert {row["id"]: one for one, _, row in filled.tracked_rows()} == ids
        reader = windows.session.read.format("delta").option("readChangeFeed", "true")
        changes = reader.option("startingVersion", version).option("endingVersion", version).load(str(folder))
        seen = {(row[0], row[1], row[2]) for row in changes.select("_change_type", "id", "n").collect()}
        kinds = (("update_preimage", None), ("update_postimage", 7))
        assert seen == {(kind, key, n) for key in texts for kind, n in kinds}
