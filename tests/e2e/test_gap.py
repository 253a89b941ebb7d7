"""A slot that is lost under load: every table ends equal, and only what differs is read again."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from sluice import faults
from sluice.contract import keys
from sluice.contract.entries import Repair
from sluice.contract.row_form import LakeQuestion
from sluice.contract.verified import NOT_COMPARED
from sluice.errors import ApplyError, ServiceError, SlotLost, UsageError
from sluice.operate.compare import closing_gaps
from sluice.operate.compare.closing_gaps import close_gap
from sluice.operate.compare.comparing import Comparison
from sluice.operate.new_slot import Recreated, recreate
from tests.e2e.mirror import FOLLOWED, Mirror
from tests.support.extent import FULL, slow
from tests.support.sources import Database

ROWS = 20_000
KEYED = ("orders", "wide", "cut")
CLOSED = KEYED if FULL else KEYED[:2]


class Lossy:
    """A mirror whose slot gets lost. `options` are those of ingest."""

    def __init__(self, mirror: Mirror, **options: Any) -> None:
        self.mirror = mirror
        self.options = options

    def lose(self) -> None:
        self.mirror.database.execute(f"SELECT pg_drop_replication_slot('{self.mirror.database.slot}')")

    def go_on(self) -> Recreated:
        return recreate(self.mirror.pipeline.options(), self.mirror.store(FOLLOWED), mirrored=lambda _: True)

    def close(self, table: str, *, between: Callable[[], None] = lambda: None) -> Comparison:
        """`between` happens after the source was read and before the lake is."""
        happened: list[bool] = []

        def before(_: LakeQuestion) -> None:
            if not happened:
                happened.append(True)
                between()

        pipeline, source = self.mirror.pipeline, self.mirror.source(**self.options)
        comparing = self.mirror.comparing(source, before=before)
        state = pipeline.table(f"public.{table}")
        with pipeline.running(**self.options, watch_interval_s=0.1):
            return close_gap(source, pipeline.store, comparing, state, seconds=60)

    def state(self, table: str) -> str:
        return self.mirror.pipeline.table(f"public.{table}").state.value

    def read_again(self, table: str) -> int:
        """Rows of all repairs of the table."""
        table_id = self.mirror.pipeline.table(f"public.{table}").table_id
        return sum(
            segment.rows
            for entry in self.mirror.pipeline.entries()
            if isinstance(entry.body, Repair) and entry.body.table_id == table_id
            for segment in entry.body.segments
        )


@pytest.fixture
def arm() -> Iterator[None]:
    yield
    faults.arm("")


@pytest.fixture(scope="module")
def lossy(mirror: Mirror) -> Lossy:
    mirror.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, k text, v text, n int)",
        f"INSERT INTO orders SELECT i, 'k' || i, 'v' || i, i FROM generate_series(1, {ROWS}) i",
        "CREATE TABLE wide (id int PRIMARY KEY, big text, n int)",
        "ALTER TABLE wide ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO wide SELECT i, repeat('b' || i, 3000), i FROM generate_series(1, 200) i",
        "CREATE TABLE cut (a int, b text, v int, PRIMARY KEY (b, a))",
        "INSERT INTO cut SELECT i, 'it''s ' || i, i FROM generate_series(1, 500) i",
        "CREATE TABLE bag (v text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag SELECT 'v' || i FROM generate_series(1, 50) i",
        "CREATE TABLE shaped (id int PRIMARY KEY, v int)",
        "INSERT INTO shaped SELECT i, i FROM generate_series(1, 100) i",
    )
    mirror.follow()
    return Lossy(mirror)


def test_a_lost_slot_is_gone_on_from_and_only_what_differs_is_read_again(
    lossy: Lossy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In front of the gap not everything is applied, in it there are changes of every kind, and while the
    tables are compared there are more. The rows that differ come in several files.
    """
    monkeypatch.setattr(closing_gaps, "MOST_KEYS", 16)
    mirror, pipeline = lossy.mirror, lossy.mirror.pipeline
    mirror.execute(
        "UPDATE orders SET v = 'before' WHERE id <= 10",
        "DELETE FROM orders WHERE id = 11",
        "UPDATE wide SET n = -1 WHERE id <= 5",  # big is not sent
    )
    pipeline.run()  # in the spool, and not in the lake
    lossy.lose()
    mirror.execute(
        "UPDATE orders SET v = 'lost' WHERE id BETWEEN 5 AND 20",
        "UPDATE orders SET v = 'v1' WHERE id = 1",  # what the lake still has
        "DELETE FROM orders WHERE id BETWEEN 30 AND 60",
        f"INSERT INTO orders SELECT i, 'k', 'lost', 0 FROM generate_series({ROWS + 1}, {ROWS + 40}) i",
        "UPDATE orders SET id = id + 100000 WHERE id BETWEEN 70 AND 79",
        "INSERT INTO wide SELECT i, repeat('new' || i, 3000), i FROM generate_series(201, 210) i",
        "UPDATE wide SET big = repeat('other', 3000) WHERE id = 7",
        "DELETE FROM wide WHERE id = 8",
        "TRUNCATE cut",
        "INSERT INTO cut SELECT i, 'it''s ' || i, i FROM generate_series(450, 520) i",
        "INSERT INTO bag VALUES ('lost')",
        "ALTER TABLE shaped ADD COLUMN w int DEFAULT 7",
        "UPDATE shaped SET w = 8, v = 0 WHERE id = 3",
    )
    with pytest.raises(SlotLost, match="MISSING"):
        pipeline.run()
    done = lossy.go_on()
    assert done.from_lsn < done.to_lsn
    assert {name.partition(".")[2] for name in done.gaps} == {*KEYED, "shaped"}
    assert done.stale == ("public.bag",)
    with pytest.raises(UsageError, match="nothing is lost"):
        lossy.go_on()

    def more(number: int) -> None:
        mirror.execute(
            f"UPDATE wide SET n = n + {number} WHERE id BETWEEN 1 AND 205",  # big is not sent
            f"UPDATE orders SET n = {number} WHERE id IN (5, 40, 2000, 100075)",
            f"INSERT INTO orders VALUES ({200000 + number}, 'k', 'after', 1)",
            f"DELETE FROM orders WHERE id = {3000 + number}",
            f"UPDATE cut SET v = {number} WHERE a > 500",
        )

    more(1)
    mirror.follow(watch_interval_s=0.1)  # the applier passes the gap by, and holds what is behind it
    assert {table: lossy.state(table) for table in KEYED} == dict.fromkeys(KEYED, "gap")
    assert mirror.applied()["public.orders"].state == "gap"
    # A column was added in the gap, so what the table holds in front of it says too little.
    assert lossy.state("shaped") == "stale"
    for number, table in enumerate(CLOSED):
        more(10 + number)
        verdict = lossy.close(table, between=lambda number=number: more(20 + number))  # type: ignore[misc]
        assert verdict.outcome == "different", verdict.reason
        assert lossy.state(table) == "live"
        more(30 + number)
    mirror.follow()
    mirror.assert_equal(*CLOSED)
    assert 0 < lossy.read_again("orders") < ROWS / 50
    assert 0 < lossy.read_again("wide") <= 220
    assert not list(pipeline.store.list(keys.REPAIRS))
    if FULL:
        mirror.rebuild()
        mirror.assert_equal(*KEYED, lake="rebuilt")


@slow
def test_a_table_without_differences_is_live_again_without_a_row_read(lossy: Lossy) -> None:
    mirror = lossy.mirror
    mirror.follow()
    before = lossy.read_again("orders")
    lossy.lose()
    lossy.go_on()
    assert lossy.close("orders").outcome == "equal"
    assert (lossy.state("orders"), lossy.read_again("orders")) == ("live", before)
    mirror.execute("UPDATE orders SET v = 'afterwards' WHERE id = 2500")
    mirror.follow()
    mirror.assert_equal("orders")


@slow
def test_a_slot_that_is_lost_again_while_a_gap_is_open_and_after_it_is_closed(lossy: Lossy) -> None:
    mirror, pipeline = lossy.mirror, lossy.mirror.pipeline
    mirror.follow()
    lossy.lose()
    mirror.execute("UPDATE orders SET v = 'first' WHERE id BETWEEN 3000 AND 3100")
    lossy.go_on()
    mirror.execute(
        "UPDATE orders SET v = 'between' WHERE id BETWEEN 3050 AND 3060", "DELETE FROM orders WHERE id = 3100"
    )
    mirror.follow()

    def again() -> None:
        """The rows are read; before ingest gets them the slot is lost once more."""
        raise _Gone

    with pytest.raises(_Gone):
        lossy.close("orders", between=again)
    lossy.lose()
    mirror.execute(
        "UPDATE orders SET v = 'second' WHERE id BETWEEN 3055 AND 3056", "DELETE FROM orders WHERE id = 3099"
    )
    assert "public.orders" in lossy.go_on().gaps
    lossy.close("orders")
    # Closed in the manifest, not in the lake, and lost again.
    mirror.execute("UPDATE orders SET v = 'more' WHERE id = 3055", "UPDATE wide SET n = 0")
    pipeline.run()
    lossy.lose()
    mirror.execute("UPDATE orders SET v = 'third' WHERE id = 3001", "UPDATE orders SET v = 'v2600' WHERE id = 2600")
    lossy.go_on()
    mirror.execute("UPDATE orders SET v = 'end' WHERE id = 3002")
    verdict = lossy.close("orders")
    assert verdict.outcome == NOT_COMPARED
    assert "closed a gap" in verdict.reason
    mirror.follow()
    lossy.close("orders")
    lossy.close("wide")
    mirror.follow()
    mirror.assert_equal("orders", "wide")


class _Gone(Exception):
    pass


@slow
@pytest.mark.parametrize(
    "point",
    [
        "slot.recreated",
        "gap.recorded",
        "gap.rows.stored",
        "gap.append.before",
        "gap.append.after",
    ],
)
def test_a_crash_at_any_step_loses_nothing(lossy: Lossy, arm: None, point: str) -> None:
    mirror, pipeline = lossy.mirror, lossy.mirror.pipeline
    mirror.follow()
    lossy.lose()
    mirror.execute(
        f"UPDATE orders SET v = '{point}' WHERE id BETWEEN 4000 AND 4004",
        "DELETE FROM orders WHERE id = (SELECT max(id) FROM orders)",
    )
    faults.arm(f"{point}=raise:StoreRefused@1")
    try:
        lossy.go_on()
        lossy.close("orders")
    except ServiceError:
        faults.arm("")
        if pipeline.table("public.orders").gap is None and lossy.state("orders") == "live" and point.startswith("slot"):
            with pytest.raises(SlotLost, match="AHEAD"):
                pipeline.run()
            lossy.go_on()
        pipeline.run(watch_interval_s=0.1)
        if lossy.state("orders") == "gap":
            lossy.close("orders")
    else:
        pytest.fail("the fault did not strike")
    assert lossy.state("orders") == "live"
    mirror.follow()
    mirror.assert_equal("orders")


@slow
def test_a_gap_behind_a_restored_copy_of_the_spool_is_not_closed_over_a_lake_table_that_is_further(
    database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    """Its marker names an entry whose number another one has now: whatever comes up to there would count as applied."""
    mirror = Mirror(database, spark, tmp_path / "mirror")
    lossy, spool = Lossy(mirror), Path(urlsplit(mirror.options(FOLLOWED).spool_uri).path)
    mirror.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'old'), (2, 'old')")
    mirror.follow()
    shutil.copytree(spool, tmp_path / "copy")
    for number in range(3):
        mirror.execute(f"UPDATE t SET v = 'before {number}' WHERE id = 1")
        mirror.pipeline.run()
    mirror.apply()
    reached = mirror.pipeline.state().seq
    shutil.rmtree(spool)
    shutil.copytree(tmp_path / "copy", spool)
    mirror.execute("UPDATE t SET v = 'lost' WHERE id = 2")
    assert lossy.go_on().gaps == ("public.t",)
    number = 0
    while mirror.pipeline.state().seq <= reached:
        number += 1
        mirror.execute(f"INSERT INTO t VALUES ({100 + number}, 'behind the gap')")
        mirror.pipeline.run()
    with suppress(ApplyError):
        mirror.apply()
    found = lossy.close("t")
    assert (found.outcome, lossy.state("t")) == (NOT_COMPARED, "gap")
    assert "an older copy of the spool was restored" in found.reason
    mirror.pipeline.request("resync", table="t")
    mirror.follow()
    assert lossy.state("t") == "live"
    mirror.assert_equal("t")
