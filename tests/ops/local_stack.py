"""The local stack as a person uses it: the commands behind the Makefile's targets, in a folder and
on ports of one test's own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from sluice.contract import keys
from sluice.contract.applied import Complete
from tests.support import commands
from tests.support.pipeline import wait_until
from tools.demo import shop
from tools.local.compare import compare_table
from tools.local.jvm import QUICK
from tools.local.ports import free_port
from tools.local.s3 import ACCESS_KEY, REGION
from tools.stack.layout import PORTS

NAMES = ("postgres", "s3", "ingest", "applier", "prometheus")
"""For a Java that lives for seconds."""


@dataclass
class LocalStack:
    """`python -m tools.stack` with these ports."""

    directory: Path
    ports: dict[str, int]

    def __call__(self, *arguments: str, timeout: float = 240.0, **environment: str) -> subprocess.CompletedProcess[str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        chosen = {
            "STACK": str(self.directory),
            "JDK_JAVA_OPTIONS": QUICK,
            **{name: str(port) for name, port in self.ports.items()},
            **environment,
        }
        command = [sys.executable, "-m", "tools.stack", *arguments]
        return commands.ended(*command, env={**ours, **chosen}, timeout=timeout)

    def pids(self) -> dict[str, int]:
        return {
            path.stem: json.loads(path.read_text())["pid"] for path in sorted((self.directory / "run").glob("*.pid"))
        }

    def connect(self) -> psycopg.Connection:
        """As the superuser; the caller closes it."""
        return psycopg.connect(f"postgresql://postgres@127.0.0.1:{self.ports['PG_PORT']}/shop", autocommit=True)

    def url(self, variable: str, path: str) -> str:
        return f"http://127.0.0.1:{self.ports[variable]}{path}"

    def assert_the_lake_follows(self, *, timeout: float = 300.0) -> None:
        """The applier comes to state that all tables are complete through what is committed now,
        and each of them equals its source, row by row.
        """
        storage = {
            "aws_endpoint": self.url("S3_PORT", ""),
            "aws_region": REGION,
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": ACCESS_KEY,
        }
        with self.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
            # Something behind the position, for a table is complete through transactions, not
            # through silence.
            connection.execute("UPDATE products SET stock = stock + 1 WHERE sku = (SELECT min(sku) FROM products)")
            assert row is not None
            wait_until(lambda: self._complete_through() > int(row[0]), what="the lake is complete", timeout=timeout)
            for table in shop.TABLES:
                compared = compare_table(
                    connection,
                    schema="public",
                    table=table,
                    lake_uri="s3://sluice/lake",
                    storage_options={**storage, "allow_http": "true"},
                )
                assert compared.is_equal, compared.differences

    def _complete_through(self) -> int:
        """The LSN of the applier's newest statement, read from the file that the S3 server keeps it
        in; 0 before the first.
        """
        newest = max(
            (self.directory / "s3" / "sluice" / "spool" / "shop" / keys.APPLY_COMPLETE).glob("*.json"), default=None
        )
        return Complete.decode(newest.read_bytes()).lsn if newest else 0


def alive(pid: int) -> bool:
    """Whether the process runs; one that waits for its parent to notice its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def local_stack(directory: Path) -> Iterator[LocalStack]:
    """Nothing is started yet; whatever was is gone at the end."""
    stack = LocalStack(directory, {name: free_port() for name in PORTS})
    try:
        yield stack
    finally:
        stack("reset")
