"""The grants of deploy/postgres/grants.sql are enough for ingest, and each of them is needed:
without it `check` names it, and so does ingest, at once.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sluice.errors import ServiceError, SourceRefused
from sluice.operate.check.preflight import run_preflight
from sluice.quoting import quote_identifier
from tests.support.ingesting import IngestPipeline
from tests.support.least_rights import grant, options_as, pipeline_role
from tests.support.sources import Database

CAME_WITH_LOGIN = {"server.keep_size", "slot.missing", "source.ddl_signal"}
"""Of every fresh database of the shared server."""


@dataclass(frozen=True)
class Poor:
    """A pipeline that runs as a role with the script's rights alone."""

    pipeline: IngestPipeline
    database: Database
    role: str

    def codes(self) -> set[str]:
        findings = run_preflight(options_as(self.database, self.role), None).findings
        return {finding.code for finding in findings} - CAME_WITH_LOGIN


@pytest.fixture
def poor(pipeline: IngestPipeline, database: Database) -> Iterator[Poor]:
    with pipeline_role(database) as role:
        database.execute(
            "CREATE SCHEMA s", "CREATE TABLE s.t (id int PRIMARY KEY, body text)", "INSERT INTO s.t VALUES (1, 'one')"
        )
        grant(database, role, tables="s.t")
        pipeline.dsn = options_as(database, role).dsn
        yield Poor(pipeline, database, role)


def test_the_script_gives_what_ingest_needs_and_not_more(poor: Poor) -> None:
    assert poor.codes() == set()
    poor.pipeline.run()
    poor.database.execute(
        "INSERT INTO s.t VALUES (2, 'two')",
        "UPDATE s.t SET body = 'b' WHERE id = 1",
        "DELETE FROM s.t WHERE id = 2",
        "TRUNCATE s.t",
    )
    poor.pipeline.run()
    assert [row["_sluice_op"] for row in poor.pipeline.rows("s.t")] == ["i", "u", "d", "t"]
    assert [row["id"] for row in poor.pipeline.rows("s.t", snapshot=True)] == [1]
    with poor.database.connect() as admin:
        role = admin.execute(
            "SELECT rolcanlogin, rolreplication, rolsuper, rolbypassrls, rolcreatedb, rolcreaterole "
            "FROM pg_roles WHERE rolname = %s",
            (poor.role,),
        ).fetchone()
        privileges = admin.execute(
            "SELECT 'table', privilege_type FROM pg_class, aclexplode(relacl) WHERE grantee = %(role)s::regrole"
            " UNION ALL SELECT 'schema', privilege_type FROM pg_namespace, aclexplode(nspacl) WHERE "
            "grantee = %(role)s::regrole"
            " UNION ALL SELECT 'database', privilege_type FROM pg_database, aclexplode(datacl) WHERE "
            "grantee = %(role)s::regrole"
            " UNION ALL SELECT 'member', roleid::regrole::text FROM pg_auth_members WHERE member = %(role)s::regrole",
            {"role": poor.role},
        ).fetchall()
    assert role == (True, True, False, False, False, False)
    assert sorted(privileges) == [("database", "CONNECT"), ("schema", "USAGE"), ("table", "SELECT")]


def test_the_script_can_be_run_again_for_a_new_table(poor: Poor) -> None:
    poor.database.execute("CREATE TABLE s.later (id int PRIMARY KEY)", "ALTER PUBLICATION {p} ADD TABLE s.later")
    assert poor.codes() == {"table.not_readable"}
    grant(poor.database, poor.role)
    assert poor.codes() == set()


REVOKED = {
    "LOGIN": ("ALTER ROLE {role} NOLOGIN", "source.connect", "28000"),
    "REPLICATION": ("ALTER ROLE {role} NOREPLICATION", "role.replication", "(?i)replication"),
    "CONNECT": ("REVOKE CONNECT ON DATABASE {database} FROM {role}, PUBLIC", "source.connect", "42501"),
    "USAGE": ("REVOKE USAGE ON SCHEMA s FROM {role}", "table.not_readable", "GRANT USAGE ON SCHEMA"),
    "SELECT": ("REVOKE SELECT ON s.t FROM {role}", "table.not_readable", "GRANT SELECT ON"),
    "the publication": ("DROP PUBLICATION {publication}", "publication.missing", "publication"),
}


@pytest.mark.parametrize(("revoke", "code", "error"), REVOKED.values(), ids=REVOKED)
def test_each_grant_is_needed_and_its_lack_is_named(poor: Poor, revoke: str, code: str, error: str) -> None:
    poor.database.execute(
        revoke.format(role=poor.role, database=poor.database.name, publication=poor.database.publication)
    )
    assert poor.codes() == {code}
    if code == "table.not_readable":
        # The table alone is set aside.
        poor.pipeline.run()
        table = poor.pipeline.table("s.t")
        assert table.state == "quarantined"
        assert re.search(error, table.reason)
        return
    with pytest.raises(ServiceError, match=error):
        poor.pipeline.run()


READ_ONLY = {
    "role": ("ROLE {role}", "for the role {role}"),
    "database": ("DATABASE {database}", "for the database {database}"),
    "role in the database": ("ROLE {role} IN DATABASE {database}", "for the role {role} in the database {database}"),
}


@pytest.mark.parametrize(("whom", "where"), READ_ONLY.values(), ids=READ_ONLY)
def test_a_role_that_may_only_read_is_told_what_keeps_it_from_creating_and_runs_without(
    poor: Poor, whom: str, where: str
) -> None:
    publication = poor.database.publication
    given = {"role": poor.role, "database": poor.database.name}
    quoted = {name: quote_identifier(value) for name, value in given.items()}
    poor.database.execute("DROP PUBLICATION {p}", f"ALTER {whom.format(**quoted)} SET default_transaction_read_only=on")
    said, undo = f"is on {where.format(**given)}", f"ALTER {whom.format(**quoted)} RESET default_transaction_read_only;"
    findings = run_preflight(options_as(poor.database, poor.role), ("s.t",)).findings
    (found,) = [one for one in findings if one.code == "role.read_only"]
    assert found.severity == "critical"
    assert said in found.seen
    assert (found.fix_sql, found.by_hand) == (undo, True)
    with pytest.raises(SourceRefused) as refused:
        poor.pipeline.run(tables=("s.t",))
    assert said in str(refused.value)
    assert undo in refused.value.hint
    assert f'CREATE PUBLICATION "{publication}"' in refused.value.hint
    with poor.database.connect() as admin:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute(f"CREATE PUBLICATION {publication} FOR TABLE s.t".encode())
    assert "role.read_only" not in poor.codes()
    poor.pipeline.run(tables=("s.t",))
    assert [row["id"] for row in poor.pipeline.rows("s.t", snapshot=True)] == [1]
    with poor.database.connect() as admin:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute(undo.encode())


def test_partitions_moved_keys_and_added_columns_need_no_right_more(poor: Poor) -> None:
    database = poor.database
    database.execute(
        "CREATE TABLE s.parted (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE s.parted_low PARTITION OF s.parted FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE s.parted_rest PARTITION OF s.parted DEFAULT",
        "INSERT INTO s.parted SELECT i * 10, i FROM generate_series(1, 20) i",
        f"ALTER PUBLICATION {database.publication} ADD TABLE s.parted",
    )
    grant(database, poor.role)
    poor.pipeline.run()
    database.execute(
        "UPDATE s.t SET id = id + 100",
        "INSERT INTO s.parted VALUES (7, 7), (700, 700)",
        "UPDATE s.parted SET id = 999 WHERE id = 50",
        "ALTER TABLE s.t ADD added int DEFAULT 3",
        "INSERT INTO s.t VALUES (1000, 'new', 4)",
    )
    poor.pipeline.run()
    assert [(one.state, one.differences) for one in poor.pipeline.verdicts()] == [("live", ())] * 2
