"""Mirror tables through the whole applier: segments and manifest in, a Delta table out, read by
another engine.
"""

import hypothesis.strategies as st
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings

from sluice.contract import keys
from sluice.errors import WriterFenced
from sluice.store.opening import open_store
from sluice_spark.lease import Lease
from tests.spark import lake
from tests.spark.changes import INT4, INT8, TEXT, TIMESTAMP, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA, Lake, histories
from tests.support.extent import cases


def _row(key: int, v: int = 0, big: str | None = "B") -> dict[str, object]:
    return {"id": key, "v": v, "big": big, "at": None}


def _by_key(rows: list[dict[str, object]]) -> dict[object, dict[str, object]]:
    assert len({row["id"] for row in rows}) == len(rows), "two rows with one key"
    return {row["id"]: row for row in rows}


def _begin(pipeline: Pipeline, *rows: dict[str, object]) -> None:
    pipeline.manifest.table(SCHEMA)
    pipeline.manifest.snapshot(list(rows), SCHEMA)
    pipeline.manifest.table(SCHEMA, state="live", new=False)


@settings(
    max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories(length=40), cuts=st.integers(1, 4), start=st.data())
def test_any_history_leaves_the_delta_table_equal(
    pipeline: Pipeline, history: list[tuple[Change, Lake]], cuts: int, start: st.DataObject
) -> None:
    pipeline = Pipeline(pipeline.spark, pipeline.folder / f"{id(history)}-{start.draw(st.integers(0, 10**9))}")
    _begin(pipeline)
    size = -(-len(history) // cuts)
    for place in range(0, len(history), size):
        pipeline.manifest.transaction([change for change, _ in history[place : place + size]], SCHEMA)
        pipeline.apply()
    assert _by_key(pipeline.rows()) == history[-1][1]


def test_a_snapshot_becomes_the_table_and_an_empty_snapshot_an_empty_table(pipeline: Pipeline) -> None:
    _begin(pipeline, _row(1), _row(2, 5, None))
    empty = table_schema(*SCHEMA.columns, table="empty")
    empty = type(empty)("16386", 1, "public", "empty", "d", empty.columns)
    pipeline.manifest.table(empty)
    pipeline.manifest.snapshot([], empty)
    log = pipeline.apply()
    assert _by_key(pipeline.rows()) == {1: _row(1), 2: _row(2, 5, None)}
    assert pipeline.rows("empty") == []
    assert {row.state for row in log.tables.values()} == {"live"}
    assert lake.rows_in(pipeline.path(), metadata=True)[0]["_sluice_lsn"] == 100


def test_nothing_is_applied_before_the_snapshot_is_final(pipeline: Pipeline) -> None:
    pipeline.manifest.table(SCHEMA)
    pipeline.manifest.snapshot([_row(1)], SCHEMA, final=False)
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    log = pipeline.apply()
    assert not DeltaTable.is_deltatable(str(pipeline.path()))
    assert (log.tables["16385"].state, log.tables["16385"].complete_through_lsn) == ("snapshot", 0)


def test_changes_that_the_snapshot_has_already_are_not_applied_again(pipeline: Pipeline) -> None:
    pipeline.manifest.table(SCHEMA)
    pipeline.manifest.transaction([Change("i", _row(1, 1)), Change("u", _row(1, 2))], SCHEMA)
    pipeline.manifest.snapshot([_row(1, 2)], SCHEMA)
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    pipeline.apply()
    assert _by_key(pipeline.rows()) == {1: _row(1, 2), 2: _row(2)}


def test_inserts_updates_deletes_and_key_changes_in_one_window(pipeline: Pipeline) -> None:
    _begin(pipeline, _row(1, big="one"), _row(2, big="two"), _row(3, big="three"))
    pipeline.manifest.transaction(
        [
            Change("u", {"id": 7, "v": 1}, old={"id": 1}, unchanged=("big", "at")),
            Change("d", old={"id": 2}),
            Change("u", {"id": 3, "v": 9}, unchanged=("big",)),
            Change("i", _row(4)),
            Change("i", _row(1, 8, "again")),
        ],
        SCHEMA,
    )
    pipeline.apply()
    assert _by_key(pipeline.rows()) == {
        7: _row(7, 1, "one"),
        3: _row(3, 9, "three"),
        4: _row(4),
        1: _row(1, 8, "again"),
    }


def test_a_truncate_leaves_only_what_came_after_it(pipeline: Pipeline) -> None:
    _begin(pipeline, _row(1), _row(2))
    pipeline.manifest.transaction(
        [Change("i", _row(3)), Change("t"), Change("i", _row(4)), Change("u", _row(4, 2))], SCHEMA
    )
    pipeline.apply()
    assert pipeline.rows() == [_row(4, 2)]
    pipeline.manifest.transaction([Change("t")], SCHEMA)
    pipeline.apply()
    assert pipeline.rows() == []


def test_J01_a_repeated_window_changes_nothing_and_a_new_process_starts_after_the_marker(pipeline: Pipeline) -> None:
    _begin(pipeline, _row(1))
    pipeline.manifest.transaction([Change("u", _row(1, 2))], SCHEMA)
    seq = pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    pipeline.apply()
    before = lake.version(pipeline.path())
    for key in list(pipeline.store.list(keys.APPLY)):
        pipeline.store.delete(key)
    pipeline.apply()
    assert (lake.version(pipeline.path()), lake.marker(pipeline.path(), pipeline.store)) == (before, seq)
    assert _by_key(pipeline.rows()) == {1: _row(1, 2), 2: _row(2)}


def test_a_marked_value_replaces_and_is_replaced(pipeline: Pipeline) -> None:
    _begin(pipeline, _row(1), _row(2))
    pipeline.manifest.transaction([Change("u", {"id": 1, "v": 1, "big": "B"}, special={"at": "infinity"})], SCHEMA)
    pipeline.apply()
    assert _by_key(pipeline.rows())[1]["at"] == "infinity"
    pipeline.manifest.transaction(
        [Change("u", {"id": 1, "v": 2, "big": "B"}, unchanged=("at",)), Change("u", _row(2, 3))], SCHEMA
    )
    pipeline.apply()
    assert _by_key(pipeline.rows()) == {1: {**_row(1, 2), "at": "infinity"}, 2: _row(2, 3)}
    pipeline.manifest.transaction([Change("u", _row(1, 4))], SCHEMA)
    pipeline.apply()
    assert _by_key(pipeline.rows())[1] == _row(1, 4)


def test_a_marked_value_in_a_key_is_matched_by_its_text(pipeline: Pipeline) -> None:
    schema = table_schema(column("at", 1, TIMESTAMP, key=True), column("v", 2, INT4))
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([], schema)
    ends = [{"at": "infinity"}, {"at": "-infinity"}]
    pipeline.manifest.transaction([Change("i", {"v": place}, special=end) for place, end in enumerate(ends)], schema)
    pipeline.manifest.transaction(
        [Change("u", {"v": 5}, special=ends[0]), Change("d", old={}, old_special=ends[1])], schema
    )
    pipeline.apply(max_window_bytes=1)
    assert pipeline.rows() == [{"at": "infinity", "v": 5}]


def test_G02_an_unsent_value_without_a_row_makes_the_table_stale_and_never_null(pipeline: Pipeline) -> None:
    _begin(pipeline, _row(1))
    pipeline.apply()
    version = lake.version(pipeline.path())
    pipeline.manifest.transaction([Change("u", {"id": 2, "v": 1}, unchanged=("big",))], SCHEMA)
    other = type(SCHEMA)("16386", 1, "public", "other", "d", SCHEMA.columns)
    pipeline.manifest.table(other)
    pipeline.manifest.snapshot([_row(5)], other)
    log = pipeline.apply()
    assert (log.tables["16385"].state, lake.version(pipeline.path())) == ("stale", version)
    assert "no row to keep it from" in log.tables["16385"].reason
    assert pipeline.rows("other") == [_row(5)]
    assert pipeline.complete().left_out == {"public.items": "stale"}
    assert pipeline.apply().tables["16385"].state == "stale"


def test_a_stale_table_starts_over_with_its_next_generation(pipeline: Pipeline) -> None:
    _begin(pipeline, _row(1))
    pipeline.manifest.table(SCHEMA, state="stale", reason="rewritten", new=False)
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    log = pipeline.apply()
    assert (log.tables["16385"].state, log.tables["16385"].reason) == ("stale", "rewritten")
    pipeline.manifest.table(SCHEMA, generation=2, new=False)
    pipeline.manifest.snapshot([_row(9)], SCHEMA, generation=2)
    assert pipeline.apply().tables["16385"].state == "live"
    assert pipeline.rows() == [_row(9)]


def test_complete_says_one_boundary_for_all_tables_and_idle_tables_advance_without_a_commit(pipeline: Pipeline) -> None:
    _begin(pipeline, _row(1))
    pipeline.apply()
    version = lake.version(pipeline.path())
    other = type(SCHEMA)("16386", 1, "public", "other", "d", SCHEMA.columns)
    pipeline.manifest.table(other)
    pipeline.manifest.snapshot([], other)
    seq = pipeline.manifest.transaction([Change("i", _row(5))], other)
    pipeline.apply()
    complete = pipeline.complete()
    assert (complete.seq, complete.lsn, complete.left_out) == (seq, pipeline.manifest.lsn, {})
    assert complete.versions == {"public.items": version, "public.other": lake.version(pipeline.path("other"))}


def test_a_table_that_somebody_else_rolled_back_is_stale(pipeline: Pipeline) -> None:
    _begin(pipeline, _row(1))
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    pipeline.apply()
    newest = max((pipeline.path() / "_delta_log").glob("*.json"))
    newest.unlink()
    for crc in (pipeline.path() / "_delta_log").glob(f"*{newest.stem}*"):
        crc.unlink()
    # Another path, because a running Spark remembers the log of this one.
    pipeline.folder = pipeline.folder.rename(pipeline.folder.parent / f"{pipeline.folder.name}-moved")
    pipeline.store = open_store(f"file://{pipeline.folder}/spool", prefix="shop/", options={})
    assert "somebody else" in pipeline.apply().tables["16385"].reason


def test_a_second_applier_on_the_pipeline_is_refused(pipeline: Pipeline) -> None:
    _begin(pipeline, _row(1))
    Lease(pipeline.store, seconds=3600).acquire()
    with pytest.raises(WriterFenced, match="another applier owns"):
        pipeline.apply()


def test_names_that_delta_and_sql_find_hard_are_kept(pipeline: Pipeline) -> None:
    schema = table_schema(
        column("i d", 1, INT8, key=True),
        column("a,b;{}()=`\\'\"%", 2, TEXT),
        column("ключ.x", 3, TEXT),
        table="odd name/ä",
    )
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([], schema)
    first, second = ({"i d": key, "a,b;{}()=`\\'\"%": f"v{key}", "ключ.x": None} for key in (1, 2))
    pipeline.manifest.transaction([Change("i", first)], schema)
    pipeline.manifest.transaction([Change("u", {**first, "ключ.x": "y"}), Change("i", second)], schema)
    pipeline.apply(max_window_bytes=1)
    assert sorted(pipeline.rows("odd name/ä"), key=lambda row: str(row["i d"])) == [{**first, "ключ.x": "y"}, second]


def test_text_keys_with_quotes_and_backslashes_are_found(pipeline: Pipeline) -> None:
    schema = table_schema(column("id", 1, TEXT, key=True), column("v", 2, INT4))
    names = ["a'b", "a\\", "\\'", "ä%", "", "z\n"]
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([{"id": name, "v": 0} for name in names], schema)
    pipeline.manifest.transaction([Change("u", {"id": name, "v": 1}) for name in names], schema)
    pipeline.apply()
    assert _by_key(pipeline.rows()) == {name: {"id": name, "v": 1} for name in names}


def test_metadata_columns_can_be_left_out(pipeline: Pipeline) -> None:
    schema = table_schema(column("id", 1, INT8, key=True))
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([{"id": 1}], schema)
    pipeline.manifest.transaction([Change("d", old={"id": 1}), Change("i", {"id": 2})], schema)
    pipeline.apply(metadata_columns=False)
    assert lake.rows_in(pipeline.path(), metadata=True) == [{"id": 2}]


@pytest.mark.parametrize("memory", cases([1 << 28, 2_000], quick=[1 << 28]))
@pytest.mark.parametrize("identity", ["d", "f"])
@pytest.mark.parametrize(("publishes", "origin"), [("iut", "any"), ("iudt", "none"), (None, "any")])
def test_a_row_inserted_again_replaces_the_one_whose_removal_was_not_sent(
    pipeline: Pipeline, publishes: str | None, origin: str, identity: str, memory: int
) -> None:
    pipeline = Pipeline(pipeline.spark, pipeline.folder / "other", origin=origin)
    schema = table_schema(*SCHEMA.columns, identity=identity)
    pipeline.manifest.table(schema, publishes=publishes)
    pipeline.manifest.snapshot([_row(1), _row(2)], schema)
    pipeline.manifest.transaction([Change("i", _row(1, 2)), Change("i", _row(3)), Change("i", _row(3, 9))], schema)
    assert pipeline.apply(max_memory_bytes=memory).tables["16385"].state == "live"
    assert _by_key(pipeline.rows()) == {1: _row(1, 2), 2: _row(2), 3: _row(3, 9)}


@pytest.mark.parametrize("memory", [1 << 28, 1])
def test_rows_are_appended_where_no_removal_can_be_missing(pipeline: Pipeline, memory: int) -> None:
    _begin(pipeline, _row(1))
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    pipeline.apply(max_memory_bytes=memory)
    history = pipeline.spark.sql(f"DESCRIBE HISTORY delta.`{pipeline.path()}` LIMIT 1").first()
    assert history is not None
    assert history["operation"] == "WRITE"
