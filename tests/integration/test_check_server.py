"""What `check` finds where it takes more than one statement to be bad: servers that restart,
sessions that stand in the way, slots that are lost.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from sluice.cli import findings_view as shown
from sluice.findings import Finding
from sluice.operate.check import preflight
from sluice.operate.check import server as preflight_server
from sluice.operate.check.preflight import run_preflight
from sluice.operate.check.server import examine_version
from sluice.source.slot import ensure_slot
from sluice.source.start_replication import start_command, start_replication
from tests.support.extent import cases, slow
from tests.support.ingesting import IngestPipeline
from tests.support.least_rights import grant, options_as, pipeline_role, run_script
from tests.support.pipeline import wait_until
from tests.support.source_setup import options_of, server_major, since
from tests.support.sources import Database
from tools.local.binaries import default_major, helper_account
from tools.local.postgres import PostgresServer, temporary_server

EXPECTED_HERE = {"role.superuser", "server.keep_size", "slot.missing", "source.ddl_signal"}
"""True of every fresh database of the shared server, whose WAL retention is unlimited, looked at as
its superuser.
"""


def codes(findings: list[Finding]) -> set[str]:
    return {finding.code for finding in findings} - EXPECTED_HERE


def found(database: Database, *, user: str = "postgres") -> list[Finding]:
    return run_preflight(options_of(database, user=user), None).findings


@pytest.fixture
def published(database: Database) -> Database:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", f"CREATE PUBLICATION {database.publication} FOR TABLE t")
    return database


def test_a_right_to_the_columns_alone_is_enough(published: Database) -> None:
    with pipeline_role(published) as role:
        published.execute(f"CREATE ROLE {role} LOGIN REPLICATION", f"GRANT SELECT (id) ON t TO {role}")
        assert codes(found(published, user=role)) == set()


@pytest.mark.parametrize(
    ("version", "expected"),
    [(180006, []), (190000, []), (200000, ["server.untested"]), (170005, ["server.minor"]), (140018, ["server.minor"])],
)
def test_versions_that_lose_changes_and_versions_that_nobody_tried_are_named(version: int, expected: list[str]) -> None:
    assert [finding.code for finding in examine_version(version)] == expected


def test_a_major_that_nobody_tried_is_refused_unless_the_configuration_allows_it() -> None:
    severities = [one.severity for allowed in (False, True) for one in examine_version(200000, allow_untested=allowed)]
    assert severities == ["critical", "warning"]


def test_a_deferrable_key_is_not_called_no_primary_key(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)", f"CREATE PUBLICATION {database.publication} FOR TABLE t"
    )
    (finding,) = [one for one in found(database) if one.code == "table.no_identity"]
    assert "its primary key is DEFERRABLE" in finding.seen
    assert "not deferrable" in finding.fix_setting


def test_a_login_trigger_that_refuses_walsenders_is_not_blamed_on_pg_hba_conf(published: Database) -> None:
    since(published, 17, "login event triggers")
    published.execute(
        "CREATE FUNCTION guard() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN IF (SELECT backend_type FROM "
        "pg_stat_get_activity(pg_backend_pid())) = 'walsender' THEN RAISE 'not here'; END IF; END $$",
        "CREATE EVENT TRIGGER guard ON login EXECUTE FUNCTION guard()",
    )
    (finding,) = [one for one in found(published) if one.code == "role.replication"]
    assert "login event trigger" in finding.fix_setting
    assert "pg_hba" not in finding.fix_setting


@pytest.mark.parametrize("limited", cases(["ROLE", "DATABASE"], quick=["ROLE"]))
def test_a_limit_on_connections_that_is_too_low_is_found_and_one_that_is_enough_is_not(
    published: Database, tmp_path: Path, limited: str
) -> None:
    """Enough is what a pipeline with snapshots needs, which runs with just that."""
    with pipeline_role(published) as role:
        grant(published, role, tables="t")
        pipeline = IngestPipeline.local(published, tmp_path, dsn=options_as(published, role).dsn)
        sessions = pipeline.options().query_sessions
        name = role if limited == "ROLE" else published.name
        senders = 0 if server_major(published) >= 18 else preflight_server.HELPERS

        def connections(limit: int) -> list[Finding]:
            published.execute(f'ALTER {limited} "{name}" CONNECTION LIMIT {limit}')
            findings = run_preflight(options_as(published, role), None, sessions=sessions).findings
            return [finding for finding in findings if finding.code == "role.connections"]

        (finding,) = connections(sessions + senders - 1)
        assert (finding.severity, f"{sessions + senders} are needed" in finding.seen) == ("critical", True)
        published.execute(finding.fix_sql)
        assert connections(sessions + senders) == []
        for number in range(20):
            published.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)", f"GRANT SELECT ON t{number} TO {role}")
            published.execute(f"ALTER PUBLICATION {published.publication} ADD TABLE t{number}")
        assert not pipeline.run(tables=()).errors.recent()
        assert pipeline.states() == {"live"}


def test_a_server_without_connections_to_spare_is_found(published: Database) -> None:
    findings = run_preflight(options_of(published), None, sessions=10_000).findings
    (finding,) = [one for one in findings if "connections" in one.code]
    assert (finding.code, finding.severity, finding.needs_restart) == ("server.connections", "critical", True)


def test_a_clock_that_is_off_is_named_and_one_that_is_right_is_not(published: Database) -> None:
    off = run_preflight(options_of(published), None, now=lambda: 0.0).findings
    assert codes(off) == {"server.clock"}
    assert codes(found(published)) == set()


def test_transactions_that_stay_open_are_named_by_who_holds_them(
    published: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight_server, "LONG_TRANSACTION_S", 0)
    with published.connect() as preparing:
        preparing.execute("BEGIN")
        preparing.execute("INSERT INTO t VALUES (1)")
        preparing.execute("PREPARE TRANSACTION 'it''s'")
    with psycopg.connect(published.dsn) as holding:
        holding.execute("INSERT INTO t VALUES (2)")
        findings = [finding for finding in found(published) if finding.code.endswith("_transaction")]
        assert codes(findings) == {"server.prepared_transaction", "server.long_transaction"}
        assert all(finding.by_hand for finding in findings)
        published.execute(*(finding.fix_sql for finding in findings))
        with pytest.raises(psycopg.OperationalError):
            holding.execute("SELECT 1")
        holding.close()
    assert codes(found(published)) == set()


def test_a_role_that_cannot_see_how_long_others_have_been_open_says_so(published: Database) -> None:
    with pipeline_role(published) as role, psycopg.connect(published.dsn) as holding:
        grant(published, role)
        holding.execute("INSERT INTO t VALUES (1)")
        (finding,) = [finding for finding in found(published, user=role) if finding.code == "role.statistics"]
        published.execute(finding.fix_sql)
        assert "role.statistics" not in codes(found(published, user=role))


def test_a_locked_table_is_named_and_waited_for_only_briefly(
    published: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_LOCK_WAIT", "50ms")
    with psycopg.connect(published.dsn) as holding:
        holding.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        assert codes(found(published)) == {"table.locked"}
    assert codes(found(published)) == set()


def test_encodings_that_utf8_cannot_hold_are_named(database: Database) -> None:
    seen = {}
    for encoding in ("SQL_ASCII", "LATIN1"):
        other = Database(database.server, name=f"{database.name}_{encoding.lower()}", slot="s", publication="p")
        database.execute(f"CREATE DATABASE {other.name} ENCODING {encoding} TEMPLATE template0")
        try:
            seen[encoding] = {finding.severity for finding in found(other) if finding.code == "server.encoding"}
        finally:
            database.execute(f"DROP DATABASE {other.name}")
    assert seen == {"SQL_ASCII": {"critical"}, "LATIN1": {"warning"}}


def test_a_slot_that_somebody_streams_from_is_named(published: Database) -> None:
    options = options_of(published)
    ensure_slot(options)
    command = start_command(
        options, start_lsn=0, proto_version=1, streaming="off", two_phase=False, messages=False, origin="any"
    )
    with closing(start_replication(options, command=command, expect=None).conn):
        assert codes(found(published)) == {"slot.active"}


RAISES_ITS_LEVEL = 19
"""The first major whose level of WAL becomes logical with the first logical slot, without a restart."""
RESTART = {"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1"}


@slow
def test_settings_that_need_a_restart_are_fixed_by_the_script_and_a_restart(tmp_path: Path) -> None:
    with temporary_server(start=False) as server:
        for name in RESTART:
            # What stands on the command line would win over ALTER SYSTEM.
            del server.settings[name]
        server.start()
        database = Database(server, name="postgres", slot="s", publication="p")
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY)",
            *(f"ALTER SYSTEM SET {name} = '{value}'" for name, value in RESTART.items()),
        )
        server.restart()
        database.execute("ALTER SYSTEM SET wal_sender_timeout = '1s'", "SELECT pg_reload_conf()")
        findings = run_preflight(options_of(database), ("public.*",)).findings
        raised = {"server.wal_level"} if server_major(database) >= RAISES_ITS_LEVEL else set()
        needed = {"server.wal_level", "server.slots", "server.senders"} - raised
        assert {finding.code for finding in findings if finding.needs_restart} == needed
        script = tmp_path / "fix.sql"
        script.write_text(shown.script(shown.ordered(findings), pipeline="t"), encoding="utf-8")
        run_script(database, script)
        server.restart()
        assert codes(run_preflight(options_of(database), ("public.*",)).findings) == set()


@pytest.mark.skipif(default_major() < RAISES_ITS_LEVEL, reason="no level of WAL follows the slots before")
@pytest.mark.parametrize("level", ["minimal", "replica"])
def test_a_level_that_the_first_slot_raises_is_no_finding_and_minimal_is(level: str) -> None:
    senders = {"max_wal_senders": "0"} if level == "minimal" else {}
    with temporary_server(settings={"wal_level": level, **senders}) as server:
        database = Database(server, name="postgres", slot="s", publication="p")
        since(database, RAISES_ITS_LEVEL, "a level of WAL that follows the slots")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        assert ("server.wal_level" in codes(found(database))) == (level == "minimal")
        if level == "replica":
            ensure_slot(options_of(database))
            assert database.one("SHOW effective_wal_level") == ("logical",)


@slow
def test_a_slot_that_loses_its_wal_is_named_before_and_after() -> None:
    with temporary_server() as server:
        database = Database(server, name="postgres", slot="s", publication="p")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        ensure_slot(options_of(database))
        database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "SELECT pg_reload_conf()")
        for _ in range(4):
            database.execute("SELECT pg_logical_emit_message(true, 'some', 'WAL')", "SELECT pg_switch_wal()")
        (before,) = [finding for finding in found(database) if finding.code.startswith("slot.")]
        assert before.code == "slot.unreserved"
        database.execute(*before.fix_sql.rstrip(";").split(";"))
        # A reload reaches the server's processes a moment later.
        wait_until(
            lambda: not any(finding.code.startswith("slot.") for finding in found(database)), what="the slot is safe"
        )
        database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "SELECT pg_reload_conf()")
        for _ in range(20):
            # The reload reaches the checkpointer, which removes WAL, a moment later.
            database.execute(
                "SELECT pg_logical_emit_message(true, 'some', 'WAL')", "SELECT pg_switch_wal()", "CHECKPOINT"
            )
            after, *_ = [finding for finding in found(database) if finding.code.startswith("slot.")]
            if after.code == "slot.invalidated":
                break
        assert (after.code, after.by_hand) == ("slot.invalidated", True)
        database.execute(after.fix_sql)
        assert [finding.code for finding in found(database) if finding.code.startswith("slot.")] == ["slot.missing"]


PLAIN = "'proto_version', '1', 'publication_names', 'p'"


@contextmanager
def standby_of(server: PostgresServer, directory: Path, *, slot: str) -> Iterator[PostgresServer]:
    """A streaming standby without hot_standby_feedback."""
    account = helper_account()
    target = directory / "standby"
    places = ["-d", server.dsn(), "-D", str(target), "-S", slot]
    command = [str(server.bin_dir / "pg_basebackup"), *places, "-C", "-R", "-X", "stream", "-c", "fast"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    if account is not None:
        for path in (target, *target.rglob("*")):
            shutil.chown(path, account.pw_uid, account.pw_gid)
    standby = PostgresServer(target, bin_dir=server.bin_dir)
    try:
        standby.start()
        yield standby
    finally:
        standby.stop("immediate")


@slow
def test_a_standby_is_examined_for_what_its_primary_could_do_to_the_slot() -> None:
    with temporary_server() as server:
        primary = Database(server, name="postgres", slot="s", publication="p")
        since(primary, 17, "slots that a standby keeps in step")
        primary.execute(
            "CREATE TABLE t (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE t",
            "SELECT pg_create_logical_replication_slot('s', 'pgoutput', failover => true)",
        )
        with standby_of(server, server.data_dir.parent, slot="standby") as standby:
            database = Database(standby, name="postgres", slot="s", publication="p")
            (finding,) = [finding for finding in found(database) if finding.code == "server.standby"]
            assert finding.severity == "warning"
            database.execute(
                *finding.fix_sql.rstrip(";").split(";"),
                "ALTER SYSTEM SET primary_slot_name = 'standby'",
                f"ALTER SYSTEM SET primary_conninfo = '{server.dsn()}'",
                "SELECT pg_reload_conf()",
            )

            def is_synced() -> bool:
                # The slot is taken over once it has moved past what the standby needs, and the
                # standby has replayed that.
                primary.execute(
                    "SELECT pg_log_standby_snapshot()",
                    f"SELECT pg_logical_slot_get_binary_changes('s', NULL, NULL, {PLAIN})",
                )
                database.execute("SELECT pg_sync_replication_slots()")
                return "slot.synced" in codes(found(database))

            wait_until(is_synced, what="the slot is taken over", timeout=60)
            assert "server.standby" not in codes(found(database))
