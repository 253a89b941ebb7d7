"""What the shared fixtures hand to a test: a database of its own, a bucket of its own."""

from dataclasses import dataclass

import psycopg

from deploy.local.postgres import PostgresServer
from deploy.local.s3 import S3Server


@dataclass(frozen=True)
class Database:
    """A database of one test. `slot` and `publication` are names that no other test uses; neither exists yet."""

    server: PostgresServer
    name: str
    slot: str
    publication: str

    @property
    def dsn(self) -> str:
        return self.server.dsn(dbname=self.name)

    def connect(self) -> psycopg.Connection:
        """A new autocommit connection as the superuser; the caller closes it."""
        return self.server.superuser(self.name)

    def execute(self, *statements: str) -> None:
        """Each statement in a transaction of its own."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())


@dataclass(frozen=True)
class Bucket:
    server: S3Server
    name: str

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    @property
    def options(self) -> dict[str, str]:
        return self.server.options()
