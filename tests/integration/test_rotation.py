"""Passwords, tokens and client certificates that change while rows flow: what is used is what holds
at each new connection, and the pipeline goes on without a restart.
"""

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Self

import pytest

from sluice import lsn
from sluice.errors import SourceRefused, StoreRefused
from sluice.source.credentials import Credentials
from sluice.source.sessions import SourceOptions, open_query
from sluice.store import probe, rotation
from sluice.store.opening import open_store
from tests.support import canary
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.pipeline import wait_until
from tests.support.policies import guarded_s3
from tests.support.source_setup import options_of
from tests.support.sources import Database
from tests.support.tls_front import make_certificate, tls_front
from tools.local.postgres import PostgresServer, temporary_server
from tools.local.sluice import Pipeline

ROLE = "carrier"


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """A server that asks ROLE for its password."""
    with temporary_server() as server:
        rules = server.data_dir / "pg_hba.conf"
        rules.write_text(f"host all {ROLE} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        with server.superuser() as admin:
            admin.execute(f"CREATE ROLE {ROLE} SUPERUSER LOGIN REPLICATION".encode())
            admin.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture
def source(guarded: PostgresServer) -> Database:
    database = Database(guarded, "postgres", slot="sluice_rotation", publication="sluice_rotation")
    database.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
        "DROP PUBLICATION IF EXISTS sluice_rotation",
        "DROP TABLE IF EXISTS t",
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (0, 'before')",
    )
    return database


class Writer:
    """Inserts a row per transaction until the block ends."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.written = 0

    def _run(self) -> None:
        with self._database.connect() as connection:
            while not self._ended.wait(0.005):
                self.written += 1
                connection.execute("INSERT INTO t VALUES (%s, 'row')", (self.written,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def password(number: int) -> str:
    return f"{canary.SECRET}-{number}"


def let_in(database: Database, secret: str) -> None:
    """Only `secret` from now on; whoever is connected as ROLE has to connect again."""
    database.execute(
        f"ALTER ROLE {ROLE} PASSWORD '{secret}'",
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{ROLE}'",
    )


def address(database: Database) -> str:
    return f"host=127.0.0.1 port={database.server.port} user={ROLE} dbname={database.name}"


def is_complete(pipeline: IngestPipeline) -> None:
    target = lsn.parse(pipeline.wal_end())
    wait_until(lambda: pipeline.state().through_lsn >= target, what="the manifest is complete")


@slow
@pytest.mark.parametrize("how", ["file", "command"])
def test_a_running_command_takes_a_password_that_was_rotated_under_load(
    source: Database, tmp_path: Path, how: str
) -> None:
    secret = tmp_path / "secret"

    def keep(number: int) -> None:
        text = f"{address(source)} password={password(number)}" if how == "file" else f"{password(number)}\n"
        fresh = tmp_path / "fresh"
        fresh.write_text(text)
        fresh.replace(secret)

    command = [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read().strip())", str(secret)]
    pipeline = Pipeline(
        tmp_path / "pipeline",
        name="test",
        dsn=address(source),
        settings={
            "source": {
                "slot": source.slot,
                "publication": source.publication,
                "tables": ["public.*"],
                **({"password_command": command} if how == "command" else {}),
            },
            "spool": {"max_delay": "50ms"},
        },
    )
    environment = {"SLUICE_SOURCE__DSN_FILE": str(secret)} if how == "file" else {}
    seen = IngestPipeline.local(source, pipeline.directory)
    let_in(source, password(1))
    keep(1)
    log = pipeline.directory / "run.log"
    with pipeline.start("run", environment=environment), Writer(source) as writer:
        wait_until(lambda: pipeline.own_spool.is_dir() and seen.state().through_lsn > 0, what="it streams")
        # The secret reaches the process before the server, and after it.
        keep(2)
        let_in(source, password(2))
        written = writer.written
        wait_until(lambda: writer.written > written, what="rows are written")
        is_complete(seen)
        let_in(source, password(3))
        wait_until(lambda: "it worked before" in log.read_text(), what="the old password is refused")
        keep(3)
        is_complete(seen)
        assert pipeline.run("slot", "show", environment=environment).returncode == 0
        writer.__exit__()
        is_complete(seen)
        source.execute(f"ALTER ROLE {ROLE} PASSWORD '{password(4)}'")
        refused = pipeline.run("slot", "show", environment=environment)
        assert refused.returncode == 5
        assert "password authentication failed" in refused.stderr
    seen.assert_equal()
    said = log.read_text() + refused.stderr + refused.stdout
    assert not [number for number in range(1, 5) if password(number) in said]


def test_stream_and_snapshots_go_on_with_a_client_certificate_that_was_replaced(
    database: Database, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path / "server")
    client = make_certificate(tmp_path / "client")
    trusted = tmp_path / "clients.pem"
    shutil.copy(client[0], trusted)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (0, 'before')")
    with tls_front(database.server.port, certificate, key, clients=trusted) as port:
        dsn = (
            f"host=127.0.0.1 port={port} user=postgres dbname={database.name} sslmode=verify-full "
            f"sslrootcert={certificate} sslcert={client[0]} sslkey={client[1]}"
        )
        pipeline = IngestPipeline.local(database, tmp_path, dsn=dsn)
        with pipeline.running() as running, Writer(database):
            is_complete(pipeline)
            fresh = make_certificate(tmp_path / "fresh")
            shutil.copy(fresh[0], trusted)
            database.cut_stream()
            ingest = running.ingest
            assert ingest is not None
            # How a refusal reaches the client depends on which side is faster: as an alert, or as a reset.
            wait_until(lambda: ingest.status.reconnects >= 2, what="the old certificate is refused")
            for old, new in zip(client, fresh, strict=True):
                shutil.copy(new, old)
            database.execute("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
            is_complete(pipeline)
        pipeline.run()
    pipeline.assert_equal()


@slow
def test_ingest_goes_on_with_another_key_of_the_object_store(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server's own check and write are two steps; that racing writers are distinguished is not the claim here.
    monkeypatch.setattr(probe, "RACERS", 1)
    monkeypatch.setattr(rotation, "_LOOK", timedelta(milliseconds=200))
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with guarded_s3() as s3:
        before = s3.options["ingest"]
        held = [before]
        store = open_store(s3.spool_uri, prefix="test/", options=before, reread=lambda: held[0])
        anybody = open_store(s3.spool_uri, prefix="test/", options=s3.options["anybody"])
        seen = IngestPipeline(database, anybody)
        with IngestPipeline(database, store).running() as running, Writer(database):
            wait_until(lambda: bool(seen.changes()), what="rows are in the spool")
            fresh = s3.another_key("ingest")
            s3.withdraw(before, "ingest")
            ingest = running.ingest
            assert ingest is not None
            wait_until(lambda: any("403" in error.message for error in ingest.errors.recent()), what="it is refused")
            held[0] = fresh
            is_complete(seen)
        seen.run()
        carried = {str(row["id"]) for snapshot in (True, False) for row in seen.rows("public.t", snapshot=snapshot)}
        assert carried == {row[0] for row in seen.source_rows("t")}
        with pytest.raises(StoreRefused, match="403"):
            open_store(s3.spool_uri, prefix="test/", options=before).get("manifest/0000000000000001.json")


def with_password(source: Database, secret: str) -> SourceOptions:
    """Options of ROLE, which is let in with `secret` alone from now on."""
    let_in(source, secret)
    return replace(options_of(source), dsn=address(source))


def test_a_password_file_is_read_for_each_connection(source: Database, tmp_path: Path) -> None:
    passfile = tmp_path / "pgpass"
    for number in (1, 2):
        options = with_password(source, password(number))
        passfile.write_text(f"*:*:*:{ROLE}:{password(number)}\n")
        passfile.chmod(0o600)
        open_query(replace(options, dsn=f"{options.dsn} passfile={passfile}")).close()


def test_what_protects_a_login_reaches_libpq_as_it_is_written(source: Database) -> None:
    options = with_password(source, password(1))
    asked = f"{options.dsn} password={password(1)}"
    with closing(open_query(replace(options, dsn=f"{asked} require_auth=scram-sha-256"))):
        pass
    for more, said in (("require_auth=md5", "authentication"), ("channel_binding=require", "channel binding")):
        with pytest.raises(SourceRefused, match=said):
            open_query(replace(options, dsn=f"{asked} {more}", credentials=Credentials()))


def test_a_command_and_a_password_exclude_each_other(source: Database) -> None:
    options = replace(options_of(source), credentials=Credentials(command=("true",)))
    with pytest.raises(Exception, match=r"source\.password_command is given as well") as caught:
        open_query(options)
    assert canary.SECRET not in str(caught.value)
