"""A planned switch-over to a standby: drained, promoted, and followed by the commands that run."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.drills.standbys import catch_up, hand_over_slot, promote, standby_of
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.pipeline import QUICK_JAVA, must, wait_until
from tests.support.sources import Database
from tools.local.postgres import PostgresServer, temporary_server
from tools.local.sluice import Pipeline


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with temporary_server() as server:
        yield server


def insert(server: PostgresServer, first: int, count: int = 20) -> None:
    with server.superuser() as connection:
        for key in range(first, first + count):
            connection.execute("INSERT INTO a VALUES (%s, 'row')", (key,))


@slow
def test_a_planned_switch_over_loses_nothing_and_the_lake_is_equal_on_both_sides(
    primary: PostgresServer, tmp_path: Path
) -> None:
    """The steps of docs/how-to/switch-over.md."""
    with primary.superuser() as connection:
        connection.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    insert(primary, 0)
    with standby_of(primary, "one") as standby:
        ports = f"{primary.port},{standby.port}"
        pipeline = Pipeline(
            tmp_path / "pipeline",
            name="shop",
            dsn=f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres dbname=postgres target_session_attrs=read-write",
            settings={
                "source": {"tables": ["public.*"], "slot": "sluice_shop"},
                "spool": {"max_delay": "50ms", "progress_interval": "1s"},
                "apply": {
                    "spark_master": "local[2]",
                    "driver_memory": "1GiB",
                    "conf": QUICK_JAVA,
                    "complete_every": "1s",
                },
            },
        )
        must(pipeline, "run", "--until-caught-up")
        source = Database(primary, "postgres", slot="sluice_shop", publication="sluice_shop")
        hand_over_slot(
            primary, standby, "sluice_shop", advance=lambda: pipeline.run("run", "--until-caught-up", timeout=60)
        )
        with pipeline.start("up"):
            insert(primary, 100)
            # The applications have stopped; this position is the last of theirs.
            target = IngestPipeline(source, store=None).wal_end()  # type: ignore[arg-type]
            must(pipeline, "drain", "--to-lsn", target, "--timeout", "3m")
            catch_up(primary, standby)
            primary.stop()
            promote(standby)
            insert(standby, 200)
            wait_until(
                lambda: "the command begins again" in (pipeline.directory / "up.log").read_text(), what="it follows"
            )
            must(pipeline, "drain", "--timeout", "3m")
        lake = DeltaTable(f"{pipeline.lake_uri}/public/a")
        found = pa.table(QueryBuilder().register("lake", lake).execute("select id, v from lake").read_all())
        with standby.superuser() as connection:
            there = connection.execute("SELECT id, v FROM a ORDER BY id").fetchall()
        assert sorted((row["id"], row["v"]) for row in found.to_pylist()) == there
        assert len(there) == 60
