"""Errors of servers that speak German, French and Japanese: what happens is decided by codes and facts,
never by words.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from sluice.errors import NoFreeConnection, SlotLost, SourceRefused, SourceUnavailable
from sluice.ingest.publication_gap import PublicationGap
from sluice.source.sessions import SourceOptions, open_query, open_replication
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.languages import LANGUAGES, speak, translated_programs, translated_server
from tests.support.sources import Database, fresh_database
from tools.local.postgres import PostgresServer

pytestmark = slow
PROGRAMS = translated_programs()
NONE_HERE = pytest.param(
    Path(), marks=pytest.mark.skip(reason="no server here has translations; Debian's packages have them")
)


@pytest.fixture(
    scope="module",
    params=[*PROGRAMS] if PROGRAMS else [NONE_HERE],
    ids=[f"pg{programs.parent.name}" for programs in PROGRAMS] or ["none"],
)
def translated(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with translated_server(request.param) as server:
        yield server


@pytest.fixture(params=LANGUAGES)
def foreign(translated: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Database]:
    speak(translated, request.param)
    with fresh_database(translated) as database:
        with database.connect() as connection, pytest.raises(psycopg.errors.UndefinedTable) as said:
            connection.execute("SELECT FROM nothing")
        assert "does not exist" not in str(said.value)
        yield database


@pytest.fixture
def pipeline(foreign: Database, tmp_path: Path) -> IngestPipeline:
    foreign.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    pipeline = IngestPipeline.local(foreign, tmp_path)
    pipeline.run()
    assert pipeline.table("public.t").state == "live"
    return pipeline


def test_a_publication_created_again_makes_its_tables_stale(pipeline: IngestPipeline) -> None:
    name = pipeline.database.publication
    pipeline.execute(f"DROP PUBLICATION {name}", "INSERT INTO t VALUES (2)")
    pipeline.run(f"CREATE PUBLICATION {name} FOR TABLE t", "INSERT INTO t VALUES (3)", watch_interval_s=600)
    table = pipeline.table("public.t")
    assert (table.state, "publication" in table.reason) == ("stale", True)


def test_a_slot_that_is_dropped_while_it_is_used_is_lost(pipeline: IngestPipeline) -> None:
    with pytest.raises(SlotLost, match=r"^MISSING"):
        _drop_slot_while_it_runs(pipeline)


def _drop_slot_while_it_runs(pipeline: IngestPipeline) -> None:
    with pipeline.running() as running:
        running.wait_until_connected()
        pipeline.execute(
            "SELECT pg_terminate_backend(active_pid, 10000), pg_drop_replication_slot(slot_name) "
            f"FROM pg_replication_slots WHERE slot_name = '{pipeline.database.slot}'"
        )
        running.thread.join(60)


def test_a_missing_object_is_the_publication_only_if_that_is_younger(pipeline: IngestPipeline) -> None:
    options, state = pipeline.options(), pipeline.state()
    with closing(open_query(options.source)) as connection:
        with pytest.raises(SourceRefused, match=r"^the words$") as refused:
            PublicationGap.find(connection, options, state, said="the words")
        assert "another object" in refused.value.hint
        pipeline.execute("ALTER PUBLICATION {p} SET (publish = 'insert')")
        assert PublicationGap.find(connection, options, state, said="the words").prepared == frozenset()


def options(database: Database, **changes: str) -> SourceOptions:
    dsn = psycopg.conninfo.make_conninfo(database.dsn, **changes)
    return SourceOptions(dsn=dsn, slot="s", publication="p", application_name="a")


@contextmanager
def role(database: Database, attributes: str = "") -> Iterator[str]:
    name = f"r_{database.name}"
    with database.server.superuser() as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN {attributes}".encode())
        try:
            yield name
        finally:
            admin.execute(f"DROP ROLE {name}".encode())


def test_a_connection_that_is_refused_needs_a_person_in_any_language(foreign: Database) -> None:
    with role(foreign) as name:
        for changes, code, hint in (
            ({"dbname": "nowhere"}, "3D000", "database"),
            ({"user": "nobody"}, "28000", "role"),
            ({"user": name}, "42501", "REPLICATION"),
            ({"options": "-c nonsense=1"}, "42704", "pooler"),
        ):
            with pytest.raises(SourceRefused, match=code) as caught:
                open_replication(options(foreign, **changes)).close()
            assert hint in caught.value.hint, changes


def test_a_connection_that_may_succeed_later_is_tried_again_in_any_language(foreign: Database) -> None:
    with role(foreign, "CONNECTION LIMIT 0") as name, foreign.server.superuser() as admin:
        with pytest.raises(NoFreeConnection) as full:
            open_query(options(foreign, user=name)).close()
        assert "limit of the role" in full.value.hint
        admin.execute(f"ALTER DATABASE {foreign.name} ALLOW_CONNECTIONS false".encode())
        try:
            with pytest.raises(SourceUnavailable):
                open_query(options(foreign)).close()
        finally:
            admin.execute(f"ALTER DATABASE {foreign.name} ALLOW_CONNECTIONS true".encode())
