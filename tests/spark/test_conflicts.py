"""Commits of others between the look of a window and its commit, by real writers at exactly that place, in every way to
commit: none leads to a wrong deletion vector, to a lost row or to a doubled one.

What rearranges files leads to a fresh look and a right commit. What changes rows or columns stops the table by name.
Another applier ends this one, or did the same work.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice import faults
from sluice.contract import keys
from sluice.contract.schema import TableSchema
from sluice_spark.applier import Applier
from sluice_spark.lake.commit_way import DIRECT, MERGE
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, running
from tests.spark.model import SCHEMA
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.replays import by_delta_rs
from tests.spark.table_audit import check_checksum, check_files
from tests.support.extent import FULL
from tests.support.pipeline import wait_until

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

FIRST = (
    Change("u", {"id": 2, "v": 2, "big": "two", "at": None}),
    Change("d", old={"id": 8}),
    Change("i", {"id": 9, "v": 9, "big": "nine", "at": None}),
)
"""Every window at every place in every way in `make chaos`; otherwise these foreign commits meet a direct one."""
QUICK = (
    "optimize",
    "append of a key of the window",
    "delete",
    "add column",
)
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
            Change("i", {"id": 20, "v": 20, "big": "new", "at": None}),
            Change("u", {"id": 21, "v": 5}, old={"id": 5}, unchanged=("big", "at")),
            Change("u", {"id": 9, "v": 99, "big": "ninety", "at": None}),
        ),
        {
            **{number: row for number, row in CHANGED.items() if number not in (4, 5)},
            3: (33, "B"), 20: (20, "new"), 21: (5, "B"), 9: (99, "ninety"),
        },
    ),
    "append": Window(
        (
            Change("i", {"id": 20, "v": 20, "big": "new", "at": None}),
            Change("i", {"id": 22, "v": 22, "big": "b", "at": None}),
        ),
        {**CHANGED, 20: (20, "new"), 22: (22, "b")},
    ),
    "overwrite": Window((Change("t"), Change("i", {"id": 20, "v": 20, "big": "new", "at": None})), {20: (20, "new")}),
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
    settings: tuple[tuple[str, str], ...] = ()


def _counted(rows: Rows, *more: tuple[int, tuple[int, str]]) -> Counted:
    return Counter([*rows.items(), *more])


def _rows(rows: Rows) -> list[dict[str, object]]:
    return [{"id": number, "v": v, "big": big, "at": None} for number, (v, big) in rows.items()]


def _without(number: int) -> Rows:
    return {key: row for key, row in CHANGED.items() if key != number}


def _inserted(number: int) -> str:
    return f"INSERT INTO {{t}} (id, v, big) VALUES ({number}, 7, 'foreign')"


_LISTING = (("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2"),)
FOREIGN = {
    "optimize": Foreign("OPTIMIZE {t}", keeps=True),
    "zorder": Foreign("OPTIMIZE {t} ZORDER BY (id)", keeps=True),
    "reorg": Foreign("REORG TABLE {t} APPLY (PURGE)", keeps=True),
    "vacuum": Foreign("VACUUM {t}", keeps=True, settings=_LISTING),
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
        self.ended: list[str] = []
        self._numbers = 20_000
        self._stop = threading.Event()
        # The manifest is there before the applier.
        self._new("warm")
        options = self.pipeline.options(once=False, way=way)
        self._applier = Applier(options, self.pipeline.store, spark, stop=self._stop)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._applier.run()
        except Exception as error:  # noqa: BLE001 - the test judges what it was
            self.ended.append(type(error).__name__)

    def stop(self) -> None:
        faults.arm("")
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    def _new(self, name: str) -> TableSchema:
        """A table with a vector and two files."""
        self._numbers += 1
        schema = replace(SCHEMA, table_id=str(self._numbers), table_name=name)
        self.pipeline.begin(schema, *_rows(BEGUN))
        self._commit(schema, FIRST)
        return schema

    def meet(self, name: str, window: Window, place: str, act: Callable[[Path], object]) -> TableSchema:
        """Lets a window of a new table come to `place`, where `act` is done to the table's folder, and go on."""
        schema = self._new(name)
        self._settle(schema)
        gate = self.pipeline.folder / f"gate-{schema.table_id}"
        faults.arm(f"{place}=hold:{gate}@1")
        try:
            self._commit(schema, window.changes)
            wait_until(lambda: bool(self.ended) or faults.passages(place) > 0, what=f"{place} is reached")
            act(self.pipeline.path(name))
        finally:
            gate.touch()
        self._settle(schema)
        faults.arm("")
        return schema

    def go_on(self, schema: TableSchema) -> None:
        """One more window."""
        self._commit(schema, (Change("i", {"id": 99, "v": 1, "big": "last", "at": None}), Change("d", old={"id": 1})))
        self._settle(schema)

    def _commit(self, schema: TableSchema, changes: tuple[Change, ...]) -> None:
        self.pipeline.manifest.transaction([replace(change) for change in changes], schema)

    def _settle(self, schema: TableSchema) -> None:
        seq = self.pipeline.manifest.seq

        def settled() -> bool:
            row = self.pipeline.reported().get(schema.table_id)
            return row is not None and (row.state == "stale" or (row.state == "live" and row.through_seq >= seq))

        wait_until(lambda: bool(self.ended) or settled(), what="the window is taken or refused")

    def found(self, name: str) -> Counted:
        """The rows by four readings, which agree, of a table that is sound. Somebody else's RESTORE writes no checksum
        file.
        """
        path = self.pipeline.path(name)
        state = DeltaFolder(path).state()
        spark = self.pipeline.spark.newSession().read.format("delta").load(str(path)).toArrow().to_pylist()
        counted = [
            Counter((row["id"], (row["v"], row["big"])) for row in rows)
            for rows in (state.rows(), state.rows(by_id=True), by_delta_rs(path, None), spark)
        ]
        assert all(one == counted[0] for one in counted), f"{name}: readers do not agree: {counted}"
        check_files(state)
        if DeltaFolder(path).checksum(state.version) is not None:
            check_checksum(DeltaFolder(path), state.version)
        return counted[0]


class Fields:
    """One field for each way; a case that ends its applier gives the next one a new field."""

    def __init__(self, spark: SparkSession, folders: pytest.TempPathFactory) -> None:
        self._spark = spark
        self._folders = folders
        self._fields: dict[str, Field] = {}

    def of(self, way: str) -> Field:
        if way not in self._fields or self._fields[way].ended:
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
                    is_quick = (
                        way == DIRECT and foreign in QUICK and window == "merge" and place == "apply.commit.before"
                    )
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
    session = at_work.pipeline.spark.newSession()
    for name, value in other.settings:
        session.conf.set(name, value)
    name = _name(way, foreign, window, place)
    schema = at_work.meet(name, ours, place, lambda path: session.sql(other.sql.format(t=f"delta.`{path}`")).collect())
    assert at_work.ended == []
    row = at_work.pipeline.reported()[schema.table_id]
    if other.keeps:
        assert (row.state, row.reason) == ("live", "")
        assert at_work.found(name) == _counted(ours.after)
        at_work.go_on(schema)
        last = {key: value for key, value in ours.after.items() if key != 1} | {99: (1, "last")}
        assert at_work.found(name) == _counted(last)
        return
    assert row.state == "stale"
    assert "somebody else changed the lake table" in row.reason
    possible = [other.after]
    if other.adds:
        # Delta lets ours pass, for it did not need to know of the new rows; the look at it stops the table.
        possible.append(_counted(ours.after, *(other.after - _counted(CHANGED)).elements()))
    if window == "append":
        # Ours does not depend on any row, so Delta lets it pass as well.
        possible.append(other.after + (_counted(ours.after) - _counted(CHANGED)))
    assert at_work.found(name) in possible


@pytest.mark.parametrize("way", WAYS if FULL else (DIRECT,))
@pytest.mark.parametrize("further", [False, True], ids=["the_same_window", "a_window_more"])
def test_another_applier_that_takes_over_before_our_commit_leaves_each_row_once(
    spark: SparkSession, tmp_path: Path, way: str, *, further: bool
) -> None:
    pipeline = Pipeline(spark, tmp_path)
    pipeline.begin(SCHEMA, *_rows(BEGUN))
    pipeline.manifest.transaction([replace(change) for change in FIRST], SCHEMA)
    pipeline.apply(way=way)
    gate = tmp_path / "gate"
    place = "apply.commit.before"
    faults.arm(f"{place}=hold:{gate}@1")
    ended: list[str] = []
    try:
        pipeline.manifest.transaction([replace(change) for change in WINDOWS["merge"].changes], SCHEMA)
        with running(pipeline, way=way) as work:
            wait_until(lambda: bool(work.ended) or faults.passages(place) > 0, what=f"{place} is reached")
            if further:
                pipeline.manifest.transaction([Change("i", {"id": 60, "v": 6, "big": "more", "at": None})], SCHEMA)
            pipeline.store.delete(keys.APPLY_LEASE)
            pipeline.apply(way=way)
            gate.touch()
            wait_until(lambda: bool(work.ended), what="the first applier ends")
            ended = work.ended
    finally:
        gate.touch()
        faults.arm("")
    assert ended == ["WriterFenced"]
    after = {**WINDOWS["merge"].after, **({60: (6, "more")} if further else {})}
    assert Counter((row["id"], (row["v"], row["big"])) for row in pipeline.rows()) == _counted(after)
    state = DeltaFolder(pipeline.path()).state()
    check_files(state)
    assert Counter((row["id"], (row["v"], row["big"])) for row in state.rows()) == _counted(after)


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
    assert at_work.ended == ["WriterFenced"]
    assert at_work.found("fenced") == _counted(CHANGED)


def _marked_ahead(at_work: Field, path: Path) -> None:
    markers = DeltaFolder(path).state().markers
    app_id = next(name for name in markers if not name.endswith("/schema"))
    empty = at_work.pipeline.spark.read.format("delta").load(str(path)).limit(0)
    writer = empty.write.format("delta").mode("append").option("txnAppId", app_id)
    writer.option("txnVersion", str(markers[app_id] + 1000)).save(str(path))
