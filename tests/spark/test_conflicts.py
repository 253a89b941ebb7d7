"""Commits of others between the look of a window and its commit, by real writers at exactly that place, in every way to
commit: none leads to a wrong deletion vector, to a lost row or to a doubled one.

What rearranges files leads to a fresh look and a right commit. What changes rows or columns stops the table by name.
Another applier ends this one, or did the same work.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice import faults
from sluice.contract import keys
from sluice.contract.schema import TableSchema
from sluice_spark.lake.commit_way import DIRECT, MERGE
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, held, running
from tests.spark.model import SCHEMA, named, row
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.replays import by_delta_rs
from tests.spark.table_audit import check_checksum, check_files
from tests.support.extent import FULL, cases, slow

WAYS = (DIRECT, MERGE)
PLACES = {
    DIRECT: ("apply.direct.data_written", "apply.direct.vectors_written", "apply.commit.before"),
    MERGE: ("apply.commit.before",),
}
"""Where a window may stand after its look, by the way it is committed."""

Rows = dict[int, tuple[int, str]]
"""(v, big) by id."""

BEGUN: Rows = dict.fromkeys(range(1, 9), (0, "B"))
CHANGED: Rows = {**{number: row for number, row in BEGUN.items() if number != 8}, 2: (2, "two"), 9: (9, "nine")}
"""After a first window, which leaves a vector and a second file."""

FIRST = (Change("u", row(2, 2, "two")), Change("d", old={"id": 8}), Change("i", row(9, 9, "nine")))
"""Every window at every place in every way in `make chaos`; otherwise these foreign commits meet a direct one."""
QUICK = ("append of a key of the window",)
Counted = Counter[tuple[int, tuple[int, str]]]


@dataclass(frozen=True)
class Window:
    """The window that meets another commit, and the rows it leaves."""

    changes: tuple[Change, ...]
    after: Rows


WINDOWS = {
    "merge": Window(
        (
            Change("u", {"id": 3, "v": 33}, unchanged=("big", "at")),
            Change("d", old={"id": 4}),
            Change("i", row(20, 20, "new")),
            Change("u", {"id": 21, "v": 5}, old={"id": 5}, unchanged=("big", "at")),
            Change("u", row(9, 99, "ninety")),
        ),
        {
            **{number: row for number, row in CHANGED.items() if number not in (4, 5)},
            3: (33, "B"), 20: (20, "new"), 21: (5, "B"), 9: (99, "ninety"),
        },
    ),
    "append": Window(
        (Change("i", row(20, 20, "new")), Change("i", row(22, 22, "b"))),
        {**CHANGED, 20: (20, "new"), 22: (22, "b")},
    ),
    "overwrite": Window((Change("t"), Change("i", row(20, 20, "new"))), {20: (20, "new")}),
}  # fmt: skip


@dataclass(frozen=True)
class Foreign:
    """A commit by somebody else. `sql` has `{t}` for the table; `keeps` says that it changes neither rows nor columns.

    `after` are the rows that it leaves of CHANGED.
    """

    sql: str
    keeps: bool = False
    adds: bool = False
    after: Counted = field(default_factory=Counter)


def _counted(rows: Rows, *more: tuple[int, tuple[int, str]]) -> Counted:
    return Counter([*rows.items(), *more])


def _rows(rows: Rows) -> list[dict[str, object]]:
    return [row(number, v, big) for number, (v, big) in rows.items()]


def _by_id(rows: Iterable[dict[str, Any]]) -> Counted:
    return Counter((one["id"], (one["v"], one["big"])) for one in rows)


def _without(number: int) -> Rows:
    return {key: row for key, row in CHANGED.items() if key != number}


def _inserted(number: int) -> str:
    return f"INSERT INTO {{t}} (id, v, big) VALUES ({number}, 7, 'foreign')"


FOREIGN = {
    "optimize": Foreign("OPTIMIZE {t}", keeps=True),
    "zorder": Foreign("OPTIMIZE {t} ZORDER BY (id)", keeps=True),
    "reorg": Foreign("REORG TABLE {t} APPLY (PURGE)", keeps=True),
    "vacuum": Foreign("VACUUM {t}", keeps=True),
    "property": Foreign("ALTER TABLE {t} SET TBLPROPERTIES ('somebodys' = 'own')", keeps=True),
    "comment": Foreign("ALTER TABLE {t} CHANGE COLUMN v COMMENT 'said'", keeps=True),
    "checkpoint interval": Foreign("ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointInterval' = '2')", keeps=True),
    "nothing deleted": Foreign("DELETE FROM {t} WHERE id = 77", keeps=True),
    "blind append": Foreign(_inserted(50), adds=True, after=_counted(CHANGED, (50, (7, "foreign")))),
    "append of a key of the window": Foreign(_inserted(20), adds=True, after=_counted(CHANGED, (20, (7, "foreign")))),
    "delete": Foreign("DELETE FROM {t} WHERE id = 3", after=_counted(_without(3))),
    "delete elsewhere": Foreign("DELETE FROM {t} WHERE id = 6", after=_counted(_without(6))),
    "update": Foreign("UPDATE {t} SET v = 7 WHERE id = 3", after=_counted({**CHANGED, 3: (7, "B")})),
    "update that moves a key in": Foreign(
        "UPDATE {t} SET id = 20 WHERE id = 6", after=_counted(_without(6), (20, (0, "B")))
    ),
    "merge": Foreign(
        "MERGE INTO {t} t USING (SELECT 3L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 7",
        after=_counted({**CHANGED, 3: (7, "B")}),
    ),
    "overwrite": Foreign(
        "INSERT OVERWRITE {t} SELECT * FROM {t} WHERE id < 3", after=_counted({1: CHANGED[1], 2: CHANGED[2]})
    ),
    "restore": Foreign("RESTORE TABLE {t} TO VERSION AS OF 0", after=_counted(BEGUN)),
    "add column": Foreign("ALTER TABLE {t} ADD COLUMNS (mine INT)", after=_counted(CHANGED)),
    "vectors off": Foreign("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')", keeps=True),
    "change feed on": Foreign("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')", keeps=True),
}  # fmt: skip


class Field:
    """One applier at work, with a new table for each case."""

    def __init__(self, spark: SparkSession, folder: Path, way: str) -> None:
        self.pipeline = Pipeline(spark, folder)
        self._numbers = 20_000
        # The manifest is there before the applier.
        self._new("warm")
        self._context = running(self.pipeline, ends=None, way=way)
        self.work = self._context.__enter__()

    def stop(self) -> None:
        faults.arm("")
        self._context.__exit__(None, None, None)

    def _new(self, name: str) -> TableSchema:
        """A table with a vector and two files."""
        self._numbers += 1
        schema = named(name, str(self._numbers))
        self.pipeline.begin(schema, *_rows(BEGUN))
        self._commit(schema, FIRST)
        return schema

    def meet(self, name: str, window: Window, place: str, act: Callable[[Path], object]) -> TableSchema:
        """Lets a window of a new table come to `place`, where `act` is done to the table's folder, and go on."""
        schema = self._new(name)
        self._settle(schema)
        with held(self.pipeline.folder / f"gate-{schema.table_id}", f"{place}@1") as let_go:
            self._commit(schema, window.changes)
            self.work.passes(place)
            act(self.pipeline.path(name))
            let_go()
            self._settle(schema)
        return schema

    def go_on(self, schema: TableSchema) -> None:
        """One more window."""
        self._commit(schema, (Change("i", row(99, 1, "last")), Change("d", old={"id": 1})))
        self._settle(schema)

    def _commit(self, schema: TableSchema, changes: tuple[Change, ...]) -> None:
        self.pipeline.change(*(replace(change) for change in changes), schema=schema)

    def _settle(self, schema: TableSchema) -> None:
        """The window is taken or refused."""
        seq = self.pipeline.manifest.seq

        def settled() -> bool:
            found = self.pipeline.reported().get(schema.table_id)
            return found is not None and (
                found.state == "stale" or (found.state == "live" and found.through_seq >= seq)
            )

        self.work.until(settled, what="the window is taken or refused")

    def found(self, name: str) -> Counted:
        """The rows by three readings, which agree, of a table that is sound. Somebody else's RESTORE writes no checksum
        file.
        """
        path = self.pipeline.path(name)
        state = DeltaFolder(path).state()
        spark = self.pipeline.spark.newSession().read.format("delta").load(str(path)).toArrow().to_pylist()
        first, *others = map(_by_id, (state.rows(), by_delta_rs(path, None), spark))
        assert others == [first] * 2, f"{name}: readers do not agree: {first}, {others}"
        check_files(state)
        if DeltaFolder(path).checksum(state.version) is not None:
            check_checksum(DeltaFolder(path), state.version)
        return first


class Fields:
    """One field for each way; a case that ends its applier gives the next one a new field."""

    def __init__(self, spark: SparkSession, folders: pytest.TempPathFactory) -> None:
        self._spark = spark
        self._folders = folders
        self._fields: dict[str, Field] = {}

    def of(self, way: str) -> Field:
        if way not in self._fields or self._fields[way].work.ended:
            self.stop(way)
            self._fields[way] = Field(self._spark, self._folders.mktemp(f"conflicts-{way}"), way)
        return self._fields[way]

    def stop(self, *ways: str) -> None:
        for way in ways or tuple(self._fields):
            if way in self._fields:
                self._fields.pop(way).stop()


@pytest.fixture(scope="module")
def fields(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fields]:
    made = Fields(spark, tmp_path_factory)
    yield made
    made.stop()


def _cases() -> Iterator[tuple[str, str, str, str]]:
    """Way, foreign commit, window, place."""
    for way, places in PLACES.items():
        for foreign in FOREIGN:
            for window in WINDOWS:
                for place in places:
                    is_quick = (way, window, place) == (DIRECT, "merge", "apply.commit.before") and foreign in QUICK
                    if FULL or is_quick:
                        yield way, foreign, window, place


def _name(way: str, foreign: str, window: str, place: str) -> str:
    return "-".join((way, foreign, window, place.removeprefix("apply."))).replace(" ", "_").replace(".", "_")


@pytest.mark.parametrize(
    ("way", "foreign", "window", "place"), [pytest.param(*case, id=_name(*case)) for case in _cases()]
)
def test_a_commit_by_somebody_else_right_before_ours_costs_a_fresh_look_or_stops_the_table(
    fields: Fields, way: str, foreign: str, window: str, place: str
) -> None:
    at_work, other, ours = fields.of(way), FOREIGN[foreign], WINDOWS[window]
    name = _name(way, foreign, window, place)
    schema = at_work.meet(name, ours, place, lambda _: at_work.pipeline.sql(other.sql, table=name))
    assert at_work.work.ended == []
    reported = at_work.pipeline.reported()[schema.table_id]
    if other.keeps:
        assert (reported.state, reported.reason) == ("live", "")
        assert at_work.found(name) == _counted(ours.after)
        at_work.go_on(schema)
        last = {key: value for key, value in ours.after.items() if key != 1} | {99: (1, "last")}
        assert at_work.found(name) == _counted(last)
        return
    assert reported.state == "stale"
    assert "somebody else changed the lake table" in reported.reason
    possible = [other.after]
    if other.adds:
        # Delta lets ours pass, for it did not need to know of the new rows; the look at it stops the table.
        possible.append(_counted(ours.after, *(other.after - _counted(CHANGED)).elements()))
    if window == "append":
        # Ours does not depend on any row, so Delta lets it pass as well.
        possible.append(other.after + (_counted(ours.after) - _counted(CHANGED)))
    assert at_work.found(name) in possible


@pytest.mark.parametrize("way", WAYS if FULL else (DIRECT,))
@pytest.mark.parametrize("further", cases([False, True], quick=[False]), ids=["the_same_window", "a_window_more"])
def test_another_applier_that_takes_over_before_our_commit_leaves_each_row_once(
    spark: SparkSession, tmp_path: Path, way: str, *, further: bool
) -> None:
    pipeline = Pipeline(spark, tmp_path)
    pipeline.begin(SCHEMA, *_rows(BEGUN))
    pipeline.change(*(replace(change) for change in FIRST))
    pipeline.apply(way=way)
    pipeline.change(*(replace(change) for change in WINDOWS["merge"].changes))
    place = "apply.commit.before"
    with held(tmp_path / "gate", f"{place}@1") as let_go, running(pipeline, ends="WriterFenced", way=way) as work:
        work.passes(place)
        if further:
            pipeline.change(Change("i", row(60, 6, "more")))
        pipeline.store.delete(keys.APPLY_LEASE)
        pipeline.apply(way=way)
        let_go()
        work.until(lambda: work.ended, what="the first applier ends")
    after = _counted({**WINDOWS["merge"].after, **({60: (6, "more")} if further else {})})
    state = DeltaFolder(pipeline.path()).state()
    check_files(state)
    assert _by_id(pipeline.rows()) == _by_id(state.rows()) == after


@slow
@pytest.mark.parametrize("way", WAYS if FULL else (DIRECT,))
def test_a_marker_of_ours_set_by_somebody_else_ahead_of_us_ends_the_applier(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    """As an applier does that works from another copy of the manifest."""
    at_work = Field(spark, tmp_path, way)
    try:
        at_work.meet("fenced", WINDOWS["merge"], "apply.commit.before", lambda path: _marked_ahead(at_work, path))
    finally:
        at_work.stop()
    assert at_work.work.ended == ["WriterFenced"]
    assert at_work.found("fenced") == _counted(CHANGED)


def _marked_ahead(at_work: Field, path: Path) -> None:
    markers = DeltaFolder(path).state().markers
    app_id = next(name for name in markers if not name.endswith("/schema"))
    empty = at_work.pipeline.spark.read.format("delta").load(str(path)).limit(0)
    writer = empty.write.format("delta").mode("append").option("txnAppId", app_id)
    writer.option("txnVersion", str(markers[app_id] + 1000)).save(str(path))
