"""Fixtures that more than one folder of tests needs: one PostgreSQL and one S3 server for the whole run, a fresh database for each test.

Servers start when the first test asks for them and stop at the end of the run; Spark's session lives in tests/spark/conftest.py.
"""

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from deploy.local.postgres import PostgresServer, temporary_server
from deploy.local.s3 import S3Server, running_s3
from tests.support.sources import Bucket, Database


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """PostgreSQL 18, shared by the whole run: a test that restarts or breaks a server starts its own with `temporary_server`."""
    with temporary_server() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    """An empty database; its slots and the database itself are dropped at the end, whatever still holds them."""
    token = uuid.uuid4().hex[:10]
    created = Database(postgres, name=f"t_{token}", slot=f"sluice_t_{token}", publication=f"sluice_t_{token}")
    with postgres.superuser() as admin:
        admin.execute(f"CREATE DATABASE {created.name}".encode())
        try:
            yield created
        finally:
            _drop(admin, created.name)


def _drop(admin: psycopg.Connection, name: str) -> None:
    # The timeout makes the server wait until each backend is gone, so that its slot is free to drop.
    admin.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", (name,))
    admin.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,))
    for (gid,) in admin.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (name,)).fetchall():
        with psycopg.connect(admin.info.dsn, dbname=name, autocommit=True) as owner:
            owner.execute(f"ROLLBACK PREPARED '{gid}'".encode())
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3-compatible server, shared by the whole run."""
    with running_s3() as server:
        yield server


@pytest.fixture
def moto(s3_server: S3Server) -> Bucket:
    """A fresh bucket with the options under which Sluice reaches it."""
    name = f"bucket-{uuid.uuid4().hex[:10]}"
    s3_server.create_bucket(name)
    return Bucket(s3_server, name)
