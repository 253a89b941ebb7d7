"""pg_upgrade to 18, from 17 with the slot, from 16 without: refused under the old name, followed by an
operator's word and a comparison.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice import lsn
from sluice.contract.table_state import State
from sluice.errors import SlotLost, UsageError
from sluice.operate.new_slot import Recreated, recreate
from sluice.store.opening import open_store
from tests.drills.standbys import hand_to_server
from tests.e2e.mirror import Mirror
from tests.e2e.test_gap import Lossy
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.pipeline import wait_until
from tests.support.sources import Database
from tools.local.binaries import bin_dir, default_major, helper_account
from tools.local.child import spawn
from tools.local.postgres import PostgresServer, temporary_server

OLD, NEW = 17, 18
_SERVER = "-c wal_level=logical -c max_replication_slots=20 -c max_wal_senders=20"

pytestmark = pytest.mark.skipif(default_major() != NEW, reason="upgrades from 17, whose slots are kept")


def run(server: PostgresServer, program: str, *arguments: str, directory: Path) -> str:
    """What a program of the server's major says, as the account that owns its files."""
    log = directory / f"{program}.log"
    command = [str(server.bin_dir / program), *arguments]
    code = spawn(command, log=log, account=helper_account(), directory=directory).wait()
    assert code == 0, log.read_text()
    return log.read_text()


@contextmanager
def upgraded(old: PostgresServer) -> Iterator[PostgresServer]:
    """What pg_upgrade makes of `old`, which it stops; started."""
    # Sockets are there, and their path must be short.
    folder = Path(tempfile.mkdtemp(prefix="pgup-", dir="/tmp"))
    hand_to_server(folder)
    old.stop()
    new = PostgresServer(folder / "data", bin_dir=bin_dir(NEW))
    new.initialise()
    try:
        run(old, "pg_checksums", "--enable", "-D", str(old.data_dir), directory=folder)
        options = ["-b", str(old.bin_dir), "-B", str(new.bin_dir), "-d", str(old.data_dir), "-D", str(new.data_dir)]
        ports = ["-p", str(old.port), "-P", str(new.port), "-U", "postgres", "-s", str(folder), "--no-sync"]
        run(new, "pg_upgrade", *options, *ports, "-o", _SERVER, "-O", _SERVER, directory=folder)
        try:
            new.start()
            yield new
        finally:
            new.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@slow
@pytest.mark.parametrize("major", [OLD, OLD - 1])
def test_a_pipeline_goes_on_after_pg_upgrade_by_a_comparison_and_never_by_itself(
    tmp_path: Path, spark: SparkSession, major: int
) -> None:
    """The steps of docs/how-to/upgrades.md. Among what happens before the first look at the new server is a
    rewrite, of which the stream has nothing and its catalog no trace that could be compared.
    """
    with temporary_server(major=major) as old:
        source = Database(old, "postgres", slot="sluice_up", publication="sluice_up")
        source.execute(
            "CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a SELECT i, 'v' FROM generate_series(1, 500) i"
        )
        mirror = Mirror(source, spark, tmp_path)
        mirror.follow()
        with mirror.pipeline.running():
            mirror.execute("INSERT INTO a VALUES (501, 'last')")
            target = lsn.parse(mirror.pipeline.wal_end())
            wait_until(lambda: mirror.pipeline.confirmed() >= target, what="everything is acknowledged")
            # It runs until the server has ended: pg_upgrade refuses a slot that has not read all.
            old.stop()
        with upgraded(old) as new:
            mirror.database = replace(source, server=new)
            mirror.pipeline = replace(mirror.pipeline, database=mirror.database)
            with pytest.raises(SlotLost, match=r"^WRONG_CLUSTER") as refused:
                mirror.pipeline.run()
            assert "slot recreate --upgraded" in refused.value.hint
            mirror.execute(
                "INSERT INTO a VALUES (502, 'first')",
                "ALTER TABLE a ALTER v TYPE text USING CASE WHEN id = 7 THEN 'rewritten' ELSE v END",
            )
            done = _go_on(mirror)
            assert done.gaps == ("public.a",)
            with pytest.raises(UsageError, match="it was not upgraded"):
                _go_on(mirror)
            mirror.execute("UPDATE a SET v = 'after' WHERE id = 8")
            mirror.follow()
            assert mirror.pipeline.table("public.a").state is State.GAP
            closed = Lossy(mirror).close("a")
            assert closed.outcome == "different", closed.reason
            mirror.execute("DELETE FROM a WHERE id = 9")
            mirror.follow()
            assert mirror.pipeline.table("public.a").state is State.LIVE
            mirror.assert_equal("a")


def test_a_server_that_cannot_be_the_upgraded_one_is_refused_by_name(tmp_path: Path) -> None:
    with temporary_server(major=OLD) as old, temporary_server() as new:
        source = Database(old, "postgres", slot="sluice_up", publication="sluice_up")
        source.execute("CREATE TABLE a (id int PRIMARY KEY)")
        pipeline = IngestPipeline(source, open_store(tmp_path.as_uri(), prefix="test/", options={}))
        pipeline.run()
        state = pipeline.state()
        # What a dump and restore gives.
        other = replace(pipeline, database=replace(source, server=new))
        other.database.execute("CREATE TABLE b (id int)", "CREATE TABLE a (id int PRIMARY KEY)")
        with pytest.raises(SlotLost, match=r"public\.a has another oid here"):
            recreate(other.options(), other.store, mirrored=lambda _: True, upgraded=True)
        with temporary_server(major=OLD) as same:
            other = replace(pipeline, database=replace(source, server=same))
            with pytest.raises(SlotLost, match="an upgrade leads to a newer major version than 17"):
                recreate(other.options(), other.store, mirrored=lambda _: True, upgraded=True)
        assert pipeline.state() == state


def _go_on(mirror: Mirror) -> Recreated:
    pipeline = mirror.pipeline
    return recreate(pipeline.options(), pipeline.store, mirrored=lambda _: True, upgraded=True)
