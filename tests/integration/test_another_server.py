"""A later session of a pipeline may be led to another server, with tables of the same names and oids: it is
refused by name, and nothing of that server gets into the spool or into an answer.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sluice.cli import plan
from sluice.contract.row_form import LakeAnswer, LakeQuestion
from sluice.errors import ServiceError, SlotLost, SourceMoved, SourceUnavailable
from sluice.manifest.reader import identity
from sluice.operate.compare.verify import Run
from sluice.source import sessions
from sluice.source.sessions import open_query, open_replication
from tests.support.command_line import command_line
from tests.support.ingesting import IngestPipeline
from tests.support.least_rights import grant, options_as, pipeline_role
from tests.support.offered import publish
from tests.support.pgproxy import PgProxy
from tests.support.source_setup import known
from tests.support.sources import Database
from tools.local.postgres import PostgresServer, temporary_server


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with temporary_server() as here, temporary_server() as other:
        yield here, other


class Two:
    """Two databases that were made by the same statements, and an address that leads to the first. In all
    tables the one has rows that say `here`, the other rows that say `other`.
    """

    def __init__(self, servers: tuple[PostgresServer, PostgresServer], proxy: PgProxy, name: str, folder: Path) -> None:
        self.here, self.other = (Database(server, name, slot=name, publication=name) for server in servers)
        self.proxy = proxy
        for server in servers:
            with server.superuser() as admin:
                admin.execute(f"CREATE DATABASE {name}".encode())
        self.execute(f"CREATE PUBLICATION {name} FOR ALL TABLES")
        self.make("a")
        self.make("b")
        self.pipeline = IngestPipeline.local(self.here, folder, dsn=proxy.dsn(dbname=name))

    def execute(self, *statements: str) -> None:
        for database in (self.here, self.other):
            database.execute(*statements)

    def make(self, table: str) -> None:
        self.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
        self.other.execute(f"INSERT INTO {table} SELECT i, 'other' FROM generate_series(1, 100) i")
        self.here.execute(f"INSERT INTO {table} SELECT i, 'here' FROM generate_series(1, 100) i")

    def lead_away(self) -> None:
        self.proxy.lead_to(self.other.server.port)

    def end_queries(self) -> None:
        """All sessions but those that stream."""
        with self.here.server.superuser() as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s AND "
                "backend_type = 'client backend'",
                (self.here.name,),
            )

    def spooled(self) -> set[str]:
        """Every value of column v in the spool."""
        return {row["v"] for name in ("a", "b") for row in self.pipeline.rows(f"public.{name}", snapshot=True)}


@pytest.fixture
def two(servers: tuple[PostgresServer, PostgresServer], tmp_path: Path) -> Iterator[Two]:
    with PgProxy(servers[0].port) as proxy:
        yield Two(servers, proxy, f"t{abs(hash(tmp_path)):x}", tmp_path)


def refused(two: Two, lead_away: Callable[[], None]) -> SlotLost:
    """How ingest, while it streams, ends after `lead_away`."""

    def follow() -> None:
        with two.pipeline.running(watch_interval_s=0.1) as run:
            run.wait_until(lambda: two.pipeline.state().tables and two.pipeline.table("public.a").state == "live")
            # What finds a table is a look, whose session stays with the first server from then on.
            two.make("found")
            run.wait_until(lambda: "found" in {table.table_name for table in two.pipeline.state().tables.values()})
            lead_away()
            run.thread.join(30)

    with pytest.raises(SlotLost, match="WRONG_CLUSTER") as found:
        follow()
    return found.value


def test_the_catalog_watch_reads_no_other_servers_catalog(two: Two) -> None:
    def lead_away() -> None:
        two.other.execute("DROP TABLE b", "ALTER TABLE a ADD COLUMN w int DEFAULT 7")
        two.lead_away()
        two.end_queries()

    assert "correct source.dsn" in refused(two, lead_away).hint
    assert {name: two.pipeline.table(f"public.{name}").state for name in "ab"} == {"a": "live", "b": "live"}


def test_a_snapshot_reads_no_other_servers_rows(two: Two) -> None:
    def lead_away() -> None:
        two.lead_away()
        two.make("c")

    refused(two, lead_away)
    assert two.spooled() == {"here"}
    assert two.pipeline.table("public.c").state == "snapshot"


def test_a_comparison_compares_with_no_other_server(two: Two) -> None:
    two.pipeline.run()
    asked: list[str] = []

    def ask(question: LakeQuestion) -> Callable[[], LakeAnswer]:
        asked.append(question.table_id)
        two.lead_away()
        return lambda: LakeAnswer(refused="the first table")

    run = Run.of(
        two.pipeline.options().source,
        two.pipeline.store,
        ask,
        load_share=1.0,
        wait_seconds=0.0,
        targets_of=lambda _: (),
    )
    states = [two.pipeline.table("public.a"), two.pipeline.table("public.b")]
    with pytest.raises(SlotLost, match="WRONG_CLUSTER"):
        run.compared(states)
    assert asked == [states[0].table_id]
    with pytest.raises(SlotLost, match="WRONG_CLUSTER"):
        run.repaired(states)


def test_plan_and_drain_look_at_no_other_servers_catalog(two: Two) -> None:
    two.pipeline.run()
    settings = two.pipeline.settings()
    assert {one.preview.effect for one in plan.look(settings)} == {"nothing"}
    two.lead_away()
    with pytest.raises(SlotLost, match="WRONG_CLUSTER"):
        plan.look(settings)


def test_a_wait_for_now_takes_no_position_of_another_server(
    two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lake may be further than that server, and has nothing of what was written there."""
    wait = partial(command_line(monkeypatch, capsys), "wait", cwd=two.pipeline.configured().parent)
    two.pipeline.run()
    (tmp_path / "lake").mkdir()
    publish(tmp_path / "lake", 1, 1 << 40, pipeline="test", manifest="of a pipeline before")
    for asked in (("--now",), ("--lsn", "0/1")):
        answer = wait(*asked, "--timeout", "300ms")
        assert (answer.returncode, "of an earlier spool" in answer.stderr) == (75, True), answer.stderr
    publish(tmp_path / "lake", 2, 1 << 40, pipeline="test", manifest=identity(two.pipeline.store))
    answer = wait("--now", "--timeout", "30s")
    assert answer.returncode == 0, answer.stderr
    two.lead_away()
    answer = wait("--now", "--timeout", "30s")
    assert (answer.returncode, "WRONG_CLUSTER" in answer.stderr) == (7, True), answer.stderr


@pytest.mark.parametrize("opener", [open_query, open_replication], ids=["query", "replication"])
def test_a_session_is_of_the_known_place_or_none_with_the_rights_of_the_pipeline(
    database: Database, opener: Callable[..., object]
) -> None:
    elsewhere: dict[str, tuple[dict[str, object], type[ServiceError]]] = {
        "WRONG_CLUSTER": ({"system_identifier": "1"}, SlotLost),
        "WRONG_DATABASE": ({"database_oid": 1}, SlotLost),
        "timeline 7": ({"timeline": 7}, SourceMoved),
    }
    database.execute("CREATE PUBLICATION {p}")
    with pipeline_role(database) as role:
        grant(database, role)
        source = known(options_as(database, role))
        with closing(opener(source)):  # type: ignore[type-var]
            pass
        for said, (other, error) in elsewhere.items():
            with pytest.raises(error, match=said):
                opener(replace(source, place=replace(source.place, **other)))  # type: ignore[arg-type]


def test_a_server_that_is_behind_the_stream_is_neither_looked_at_nor_read(
    pipeline: IngestPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby of the server that streams, behind a load balancer, has the same identity and timeline."""
    pipeline.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    pipeline.publish("t")
    with pipeline.running(watch_interval_s=0.1) as run:
        run.wait_until_live()
        with monkeypatch.context() as behind:
            behind.setattr(sessions, "LOG_POSITION", "'0/1'")
            with pytest.raises(SourceUnavailable, match=r"a server that is at 0/1, and the stream has come to 0/2"):
                open_query(replace(pipeline.known(), reached=lambda: 2))
            pipeline.request("resync", table="t")
            run.wait_until(lambda: any("is behind" in one.message for one in run.ingest.errors.kept()))
            assert pipeline.table("public.t").generation == 1
        run.wait_until(lambda: pipeline.table("public.t").generation == 2)
        run.wait_until_live()
