"""Mirror tables through the whole applier: segments and manifest in, a Delta table out, read by
another engine.
"""

from typing import Any

import hypothesis.strategies as st
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings

from sluice.contract import keys
from sluice.errors import WriterFenced
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from sluice_spark.lease import Lease
from tests.spark import lake
from tests.spark.changes import INT4, INT8, TIMESTAMP, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.model import ID, SCHEMA, Lake, by_key, histories, named, row, windows
from tests.spark.test_large_windows import in_every_size
from tests.support.extent import cases


@in_every_size(quick=["at once", "in portions"])
@settings(
    max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    history=histories(keys=40, length=100),
    cuts=st.lists(st.integers(0, 100), min_size=1, max_size=3),
    name=st.integers(0, 10**9),
)
def test_any_history_leaves_the_delta_table_equal(
    pipeline: Pipeline, options: dict[str, Any], history: list[tuple[Change, Lake]], cuts: list[int], name: int
) -> None:
    pipeline = Pipeline(pipeline.spark, pipeline.folder / f"{id(history)}-{name}")
    pipeline.begin(SCHEMA)
    for changes in filter(None, windows(history, cuts)):
        pipeline.change(*changes)
        reported = pipeline.apply(**options).tables[ID]
        if "apply.max_memory" in reported.reason:
            return  # a chain of moves may be longer than so little memory can hold
        assert (reported.state, reported.reason) == ("live", "")
    assert by_key(pipeline.rows()) == history[-1][1]


def test_nothing_is_applied_before_the_snapshot_is_final(pipeline: Pipeline) -> None:
    pipeline.manifest.table(SCHEMA)
    pipeline.manifest.snapshot([row(1)], SCHEMA, final=False)
    pipeline.change(Change("i", row(2)))
    assert pipeline.applied(state="snapshot").complete_through_lsn == 0
    assert not DeltaTable.is_deltatable(str(pipeline.path()))


def test_changes_that_the_snapshot_has_already_are_not_applied_again(pipeline: Pipeline) -> None:
    pipeline.manifest.table(SCHEMA)
    pipeline.change(Change("i", row(1, 1)), Change("u", row(1, 2)))
    pipeline.manifest.snapshot([row(1, 2)], SCHEMA)
    pipeline.change(Change("i", row(2)))
    pipeline.apply()
    assert pipeline.rows() == [row(1, 2), row(2)]


def test_J01_a_repeated_window_changes_nothing_and_a_new_process_starts_after_the_marker(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.change(Change("u", row(1, 2)))
    seq = pipeline.change(Change("i", row(2)))
    pipeline.apply()
    before = pipeline.version()
    for key in list(pipeline.store.list(keys.APPLY)):
        pipeline.store.delete(key)
    pipeline.apply()
    assert (pipeline.version(), lake.marker(pipeline.path(), pipeline.store)) == (before, seq)
    assert pipeline.rows() == [row(1, 2), row(2)]


def test_a_marked_value_replaces_and_is_replaced(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1), row(2))
    for changes, expected in (
        ([Change("u", {"id": 1, "v": 1, "big": "B"}, special={"at": "infinity"})], [row(1, 1, at="infinity"), row(2)]),
        (
            [Change("u", {"id": 1, "v": 2, "big": "B"}, unchanged=("at",)), Change("u", row(2, 3))],
            [row(1, 2, at="infinity"), row(2, 3)],
        ),
        ([Change("u", row(1, 4))], [row(1, 4), row(2, 3)]),
    ):
        pipeline.change(*changes)
        pipeline.apply()
        assert pipeline.rows() == expected


def test_a_marked_value_in_a_key_is_matched_by_its_text(pipeline: Pipeline) -> None:
    pipeline.begin(table_schema(column("at", 1, TIMESTAMP, key=True), column("v", 2, INT4)))
    ends = [{"at": "infinity"}, {"at": "-infinity"}]
    pipeline.change(*(Change("i", {"v": place}, special=end) for place, end in enumerate(ends)))
    pipeline.change(Change("u", {"v": 5}, special=ends[0]), Change("d", old={}, old_special=ends[1]))
    pipeline.apply(max_window_bytes=1)
    assert pipeline.rows() == [{"at": "infinity", "v": 5}]


def test_G02_an_unsent_value_without_a_row_makes_the_table_stale_and_never_null(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.apply()
    version = pipeline.version()
    pipeline.change(Change("u", {"id": 2, "v": 1}, unchanged=("big",)))
    pipeline.begin(named("other"), row(5))
    assert "no row to keep it from" in pipeline.applied(state="stale").reason
    assert pipeline.version() == version
    assert pipeline.rows("other") == [row(5)]
    assert pipeline.complete().left_out == {"public.items": "stale"}
    pipeline.applied(state="stale")


def test_a_stale_table_starts_over_with_its_next_generation(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.manifest.table(SCHEMA, state="stale", reason="rewritten", new=False)
    pipeline.change(Change("i", row(2)))
    assert pipeline.applied(state="stale").reason == "rewritten"
    pipeline.begin(SCHEMA, row(9), generation=2)
    pipeline.applied()
    assert pipeline.rows() == [row(9)]


def test_complete_says_one_boundary_for_all_tables_and_idle_tables_advance_without_a_commit(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.apply()
    version = pipeline.version()
    pipeline.begin(named("other"))
    seq = pipeline.change(Change("i", row(5)))
    pipeline.apply()
    complete = pipeline.complete()
    assert (complete.seq, complete.lsn, complete.left_out) == (seq, pipeline.manifest.lsn, {})
    assert complete.versions == {"public.items": version, "public.other": pipeline.version("other")}


def test_a_table_that_somebody_else_rolled_back_is_stale(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.change(Change("i", row(2)))
    pipeline.apply()
    newest = max(pipeline.log().glob("*.json"))
    for file in [newest, *pipeline.log().glob(f"*{newest.stem}*.crc*")]:
        file.unlink()
    pipeline.move()
    assert "somebody else" in pipeline.applied(state="stale").reason


def test_a_second_applier_on_the_pipeline_is_refused(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    Lease(pipeline.store, seconds=3600).acquire()
    with pytest.raises(WriterFenced, match="another applier owns"):
        pipeline.apply()


def test_metadata_columns_can_be_left_out(pipeline: Pipeline) -> None:
    pipeline.begin(table_schema(column("id", 1, INT8, key=True)), {"id": 1})
    pipeline.change(Change("d", old={"id": 1}), Change("i", {"id": 2}))
    pipeline.apply(metadata_columns=False)
    assert pipeline.rows(metadata=True) == [{"id": 2}]


@pytest.mark.parametrize("way", cases([DIRECT, DISTRIBUTED, MERGE], quick=[DIRECT]))
@pytest.mark.parametrize("deletes", cases(["hard", "soft"], quick=["soft"]))
@pytest.mark.parametrize("made_with", cases([True, False], quick=[True]), ids=["with", "without"])
def test_metadata_columns_stay_as_a_table_was_made_until_its_next_snapshot(
    pipeline: Pipeline, *, made_with: bool, deletes: str, way: str
) -> None:
    """A row that changed kept the position of its change before; or every table was quarantined."""
    options: dict[str, Any] = {"target": {"kind": "mirror", "deletes": deletes}, "way": way}
    schema = table_schema(column("id", 1, INT8, key=True), column("v", 2, INT8))
    pipeline.begin(schema, {"id": 1, "v": 1}, {"id": 2, "v": 1})
    pipeline.applied(metadata_columns=made_with, **options)
    pipeline.change(Change("u", {"id": 1, "v": 2}), Change("i", {"id": 3, "v": 2}), Change("d", old={"id": 2}))
    pipeline.evolve(table_schema(*schema.columns, column("w", 3, INT8), version=2))
    pipeline.change(Change("i", {"id": 4, "v": 3, "w": 3}))
    pipeline.applied(metadata_columns=not made_with, **options)
    found = [(row["id"], row["v"], row.get("_sluice_lsn")) for row in pipeline.rows(metadata=True)]
    wanted = [(1, 2, 110), (3, 2, 110), (4, 3, 120)] + ([(2, 1, 110)] if deletes == "soft" else [])
    assert sorted(found) == sorted(row if made_with else (*row[:2], None) for row in wanted)
    assert ("_sluice_lsn" in pipeline.rows(metadata=True)[0]) is made_with
    pipeline.begin_again(pipeline.schema, {"id": 1, "v": 2, "w": None})
    pipeline.applied(metadata_columns=not made_with, **options)
    assert ("_sluice_lsn" in pipeline.rows(metadata=True)[0]) is not made_with


@pytest.mark.parametrize("memory", cases([1 << 28, 2_000], quick=[1 << 28]))
@pytest.mark.parametrize("identity", ["d", "f"])
@pytest.mark.parametrize(
    ("publishes", "origin"), cases([("iut", "any"), ("iudt", "none"), (None, "any")], quick=[("iut", "any")])
)
def test_a_row_inserted_again_replaces_the_one_whose_removal_was_not_sent(
    pipeline: Pipeline, publishes: str | None, origin: str, identity: str, memory: int
) -> None:
    pipeline = Pipeline(pipeline.spark, pipeline.folder / "other", origin=origin)
    schema = table_schema(*SCHEMA.columns, identity=identity)
    pipeline.manifest.table(schema, publishes=publishes)
    pipeline.manifest.snapshot([row(1), row(2)], schema)
    pipeline.change(Change("i", row(1, 2)), Change("i", row(3)), Change("i", row(3, 9)), schema=schema)
    pipeline.applied(max_memory_bytes=memory)
    assert pipeline.rows() == [row(1, 2), row(2), row(3, 9)]


@pytest.mark.parametrize("memory", cases([1 << 28, 1], quick=[1 << 28]))
def test_rows_are_appended_where_no_removal_can_be_missing(pipeline: Pipeline, memory: int) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.change(Change("i", row(2)))
    pipeline.apply(max_memory_bytes=memory)
    assert DeltaTable(pipeline.path()).history(1)[0]["operation"] == "WRITE"
