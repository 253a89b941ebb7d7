"""A replay is the lake as of one position, made from the spool: tables of all kinds are equal to the living ones at the
end of entries, and in the middle of an entry to what the source had at each commit.
"""

import shutil
import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sluice import lsn
from sluice.contract.lake_targets import LakeTarget
from sluice.errors import StoreRefused, UsageError
from sluice.manifest import pruning
from sluice.manifest.replaying import Moment
from sluice.operate import replay
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from sluice.tables.policies import Policies, TablePolicy
from sluice_spark import replayed
from sluice_spark.applier import Applier
from sluice_spark.options import ApplyOptions
from sluice_spark.spool import opened
from tests.e2e.mirror import FOLLOWED, Mirror
from tests.spark import lake
from tests.support.extent import FULL, slow

pytestmark = pytest.mark.timeout(2400)
EVERY = (
    LakeTarget(),
    LakeTarget(name="soft", deletes="soft"),
    LakeTarget("history", "history"),
    LakeTarget("changelog", "log"),
)
TARGETS = EVERY if FULL else EVERY[::2]
PATHS = ("public/orders", *(f"public/{target.name}" for target in TARGETS[1:]), "public/counted")
STORY = (
    (
        "INSERT INTO orders VALUES (5, 'new', 1.5), (6, 'new', 2.5)",
        "UPDATE orders SET status = 'paid' WHERE id IN (1, 5)",
        "DELETE FROM orders WHERE id = 2; INSERT INTO counted VALUES (1, 'a'), (1, 'a')",
    ),
    (
        "UPDATE orders SET id = 20 WHERE id = 1; UPDATE orders SET total = total + 1",
        "DELETE FROM counted WHERE a = 1; INSERT INTO counted VALUES (7, 'x')",
        "INSERT INTO orders VALUES (2, 'again', 9)",
        "UPDATE orders SET status = 'late'",
    ),
    (
        "TRUNCATE orders; INSERT INTO orders (id, status) VALUES (30, 'first')",
        "UPDATE orders SET big = 'short' WHERE id = 30; UPDATE counted SET b = NULL",
        "DELETE FROM orders WHERE id = 31",
    ),
    (
        "INSERT INTO orders (id) VALUES (40)",
        "ALTER TABLE orders ADD COLUMN more text DEFAULT 'm'; UPDATE orders SET more = 'n' WHERE id = 40",
    ),
)
"""Windows of the living lake, each of several transactions."""
WINDOWS = STORY if FULL else ((*STORY[0], *STORY[1]), (*STORY[2], *STORY[3]))
QUICK, PENDING = (1, 5, 8), 10
"""Positions in the middle of windows that are looked at when not all are."""


@dataclass
class Story:
    """What the story left: positions at which the living lake stood, with the version of each table, and the source's
    rows behind each transaction, by position.
    """

    mirror: Mirror
    ends: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    rows: list[tuple[int, datetime, list[Any]]] = field(default_factory=list)

    def options(self) -> ApplyOptions:
        targets = [target.encode() for target in TARGETS]
        return replace(self.mirror.options(), tables={"public.orders": {"targets": targets}})

    def planned(
        self, spool: ObjectStore, there: ObjectStore, to: Moment, *names: str
    ) -> tuple[replay.Plan, ApplyOptions]:
        ours = self.options()
        plan = replay.plan(spool, there, to, names, pipeline="test", targets_of=ours.targets_of, metadata_columns=True)
        tables = {**ours.tables, **{name: {"targets": list[Any]()} for name in plan.others}}
        return plan, replace(ours, tables=tables, last_seq=plan.record.seq, last_lsn=plan.record.lsn)

    def replayed(self, to: Moment, folder: Path, *names: str) -> dict[str, Any]:
        """As the command does it, in this process."""
        there = open_store(folder.as_uri(), options={})
        plan, options = self.planned(self.mirror.store(FOLLOWED), there, to, *names)
        replay.begin(there, plan.record)
        options = replace(options, lake_uri=folder.as_uri(), maintenance_share=0.0)
        store = opened(options.spool)
        Applier(options, store, self.mirror.spark, stop=threading.Event()).run()
        return replayed.made(options, store, self.mirror.spark)


@pytest.fixture(scope="module")
def story(mirror: Mirror) -> Story:
    mirror.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric(12, 2), big text)",
        "ALTER TABLE orders ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO orders SELECT id, 'old', id, repeat('b', 5000) FROM generate_series(1, 4) id",
        "CREATE TABLE counted (a int, b text)",
        "ALTER TABLE counted REPLICA IDENTITY FULL",
        "INSERT INTO counted VALUES (1, 'a'), (2, 'b')",
    )
    left = Story(mirror)
    policy = TablePolicy(targets=TARGETS)
    _follow(left, policies=Policies(TablePolicy(), {"public.orders": policy}))
    for transactions in WINDOWS:
        for statements in transactions:
            mirror.transaction(*statements.split("; "))
            position, now = mirror.database.one("SELECT pg_current_wal_insert_lsn(), clock_timestamp()")
            rows = mirror.database.all("SELECT * FROM orders")
            left.rows.append((lsn.parse(position), now.astimezone(UTC), rows))
        _follow(left, policies=Policies(TablePolicy(), {"public.orders": policy}))
    return left


def _follow(left: Story, **options: Any) -> None:
    mirror = left.mirror
    mirror.pipeline.run(**options)
    mirror.apply_by(left.options())
    versions = {path: lake.version(mirror.lake_path() / path) for path in PATHS}
    left.ends.append((mirror.pipeline.state().through_lsn, versions))


def _rows(folder: Path, path: str, version: int | None = None) -> list[str]:
    return sorted(map(repr, lake.rows_in(folder / path, metadata=True, version=version)))


def test_at_every_position_where_the_living_lake_stood_all_kinds_are_equal(story: Story, tmp_path: Path) -> None:
    for number, (position, versions) in list(enumerate(story.ends))[0 if FULL else -1 :]:
        made = story.replayed(position, tmp_path / str(number))
        assert {table["path"] for table in made["tables"]} >= set(PATHS)
        for path in PATHS:
            living = _rows(story.mirror.lake_path(), path, versions[path])
            assert _rows(tmp_path / str(number), path) == living, (number, path)


@slow
def test_between_the_transactions_of_one_entry_all_kinds_are_what_the_source_had(story: Story, tmp_path: Path) -> None:
    living = story.mirror.lake_path()
    entries = len(list(story.mirror.store(FOLLOWED).list("manifest/")))
    with pytest.raises(UsageError, match="which is pending there"):
        story.replayed(story.rows[PENDING][0], tmp_path / "pending", "public.orders")
    for number, (position, at, rows) in enumerate(story.rows[:PENDING]):
        if not FULL and number not in QUICK:
            continue
        folder = tmp_path / str(number)
        by_lsn = number % 2 > 0
        made = story.replayed(position if by_lsn else at, folder, "public.orders")
        assert not by_lsn or lsn.parse(made["lsn"]) <= position
        names = [column.name for column in _columns(folder / "public/orders")]
        assert _values(folder, "public/orders", names) == sorted(repr(tuple(row)) for row in rows), number
        changes = [row for row in lake.rows_in(living / "public/log", metadata=True) if row["_sluice_lsn"] <= position]
        assert _keyed(lake.rows_in(folder / "public/log", metadata=True)) == _keyed(changes), number
        assert _history(folder / "public/history", position) == _history(living / "public/history", position), number
        live = [row for row in lake.rows_in(folder / "public/soft", metadata=True) if row["_sluice_deleted_at"] is None]
        assert len(live) == len(rows), number
    assert len(list(story.mirror.store(FOLLOWED).list("manifest/"))) == entries


def _columns(path: Path) -> list[Any]:
    from deltalake import DeltaTable

    return [one for one in DeltaTable(path).schema().fields if not one.name.startswith("_sluice")]


def _values(folder: Path, path: str, names: list[str]) -> list[str]:
    return sorted(repr(tuple(row[name] for name in names)) for row in lake.rows_in(folder / path))


def _keyed(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr((row["_sluice_lsn"], row["_sluice_ordinal"], row["_sluice_op"], row["id"])) for row in rows)


def _history(path: Path, position: int) -> list[str]:
    """The versions as they were at the position."""
    found = []
    for row in lake.rows_in(path, metadata=True):
        if row["_sluice_from_lsn"] <= position:
            ended = row["_sluice_to_lsn"] is not None and row["_sluice_to_lsn"] <= position
            found.append((row["id"], row["status"], row["_sluice_from_lsn"], row["_sluice_to_lsn"] if ended else None))
    return sorted(map(repr, found))


def test_what_the_spool_cannot_make_is_refused_by_name_and_nothing_is_written(story: Story, tmp_path: Path) -> None:
    spool, (position, _) = story.mirror.store(FOLLOWED), story.ends[-1]
    state = story.mirror.pipeline.state()
    (orders,) = [table for table in state.tables.values() if table.table_name == "orders"]
    segment = next(iter(spool.list(f"data/{orders.table_id}/")))
    data = spool.get(segment)
    spool.delete(segment)
    try:
        with pytest.raises(UsageError, match="are not in the spool any more"):
            story.replayed(position, tmp_path / "new")
    finally:
        spool.put(segment, data)
    first = story.ends[0][0]
    for to, names, says in (
        (first - 1, (), "begins at|is not complete there|whose snapshot is as of"),
        (position + (1 << 40), (), "the spool ends at"),
        (datetime.now(UTC), (), "the spool ends at"),
        (position, ("public.nothing",), "public.nothing which is no table"),
    ):
        with pytest.raises(UsageError, match=says):
            story.replayed(to, tmp_path / "new", *names)
    assert not (tmp_path / "new").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "something").write_text("")
    with pytest.raises(UsageError, match="the lake is not empty"):
        story.replayed(position, tmp_path / "used")
    for where in (
        story.mirror.lake_uri(),
        f"{story.mirror.lake_uri()}/inside",
        story.mirror.lake_uri().rpartition("/")[0],
    ):
        with pytest.raises(UsageError, match="is the lake, or is inside it"):
            replay.require_apart(where, {"the lake": story.mirror.lake_uri()})


def test_the_view_of_the_spool_writes_nothing_into_it(story: Story, tmp_path: Path) -> None:
    store = opened(replace(story.options(), lake_uri=tmp_path.as_uri(), last_seq=1, last_lsn=1).spool)
    before = sorted(story.mirror.store(FOLLOWED).list(""))
    store.create("apply/log/9.json", b"1")
    store.put("apply/scratch/x", b"2")
    assert list(store.list("apply/")) == ["apply/log/9.json", "apply/scratch/x"]
    for write in (store.put, store.create):
        with pytest.raises(StoreRefused, match="belongs to the pipeline"):
            write("manifest/1.json", b"")
    with pytest.raises(StoreRefused, match="belongs to the pipeline"):
        store.delete(next(key for key in before if key.startswith("manifest/")))
    assert sorted(story.mirror.store(FOLLOWED).list("")) == before


@slow
def test_a_spool_that_is_pruned_while_a_replay_needs_it_ends_it_by_name(story: Story, tmp_path: Path) -> None:
    """Each time that it is given again, and also when that happened before Spark was there."""
    followed = story.mirror.options(FOLLOWED).spool_uri.removeprefix("file://")
    shutil.copytree(followed, tmp_path / "spool")
    spool = open_store((tmp_path / "spool").as_uri(), prefix="test/", options={})
    lake_uri = (tmp_path / "lake").as_uri()
    plan, options = story.planned(spool, open_store(lake_uri, options={}), story.ends[-1][0], "public.orders")
    first = min(table.generation_seq for table in plan.tables)
    options = replace(options, spool_uri=(tmp_path / "spool").as_uri(), lake_uri=lake_uri, first_seq=first)
    store = opened(options.spool)

    def given() -> None:
        with replayed.watched(options, store):
            Applier(options, store, story.mirror.spark, stop=threading.Event()).run()

    pruning.carry_out(spool, pruning.plan(spool, keep_seconds=0))
    for _ in range(2):
        with pytest.raises(UsageError, match="the spool was pruned through entry"):
            given()
