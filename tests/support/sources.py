"""What the shared fixtures hand to a test: a database of its own, a bucket of its own."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.support import canary
from tools.local.postgres import PostgresServer
from tools.local.s3 import S3Server


@dataclass(frozen=True)
class Database:
    """A database of one test. `slot` and `publication` are names that no other test uses; neither exists yet."""

    server: PostgresServer
    name: str
    slot: str
    publication: str

    @property
    def dsn(self) -> str:
        """As the superuser, with a password that must not be seen."""
        return canary.with_password(self.server.dsn(dbname=self.name))

    def connect(self) -> psycopg.Connection:
        """A new autocommit connection as the superuser; the caller closes it."""
        return self.server.superuser(self.name)

    def one(self, query: str, *parameters: object) -> tuple[Any, ...]:
        """The first row that `query` gives."""
        return self.all(query, *parameters)[0]

    def all(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(query.encode(), parameters or None).fetchall()

    def lsn(self) -> int:
        """The position behind everything that is committed by now."""
        return int(self.one("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0])

    def execute(self, *statements: str) -> None:
        """Each statement in a transaction of its own; `{p}` in it is the publication."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.replace("{p}", self.publication).encode())

    def transact(self, *statements: str, end: str = "COMMIT") -> None:
        """All of them in one transaction, one after the other."""
        with self.connect() as connection:
            for statement in ("BEGIN", *statements, end):
                connection.execute(statement.replace("{p}", self.publication).encode())

    def published(self) -> list[str]:
        query = "SELECT tablename::text FROM pg_publication_tables WHERE pubname = %s ORDER BY 1"
        return [name for (name,) in self.all(query, self.publication)]

    def end_prepared(self, *, older_than_seconds: float = 0.0) -> None:
        """Commits what clients left prepared when they lost their connection."""
        query = (
            "SELECT gid FROM pg_prepared_xacts WHERE database = %s AND prepared <= now() - make_interval(secs => %s)"
        )
        self.execute(*(f"COMMIT PREPARED '{gid}'" for (gid,) in self.all(query, self.name, older_than_seconds)))

    def cut_stream(self) -> None:
        """The server ends the connection that serves the slot, and that is over when this returns."""
        self.all(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = %s", self.slot
        )


@contextmanager
def fresh_database(server: PostgresServer) -> Iterator[Database]:
    """An empty database; its slots and the database itself are dropped at the end, whatever still holds them."""
    token = uuid.uuid4().hex[:10]
    created = Database(server, name=f"t_{token}", slot=f"sluice_t_{token}", publication=f"sluice_t_{token}")
    with server.superuser() as admin:
        # Files cost a fifth of what blocks through WAL cost, the default since 15, and there are a thousand databases.
        copied = " STRATEGY file_copy" if admin.info.server_version >= 150000 else ""
        admin.execute(f"CREATE DATABASE {created.name}{copied}".encode())
    try:
        yield created
    finally:
        # Another connection: the server may have been started again in between.
        with server.superuser() as admin:
            _drop(admin, created.name)


def _drop(admin: psycopg.Connection, name: str) -> None:
    # The timeout makes the server wait until each backend is gone, so that its slot is free to drop.
    admin.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", (name,))
    admin.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,))
    for (gid,) in admin.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (name,)).fetchall():
        with psycopg.connect(admin.info.dsn, dbname=name, autocommit=True) as owner:
            owner.execute(f"ROLLBACK PREPARED '{gid}'".encode())
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@dataclass(frozen=True)
class Bucket:
    server: S3Server
    name: str

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    @property
    def options(self) -> dict[str, str]:
        """With a secret key that must not be seen."""
        return {**self.server.options(), "secret_access_key": canary.SECRET}
