"""The servers of tools.local that every other test stands on do what they promise."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest


def test_a_server_does_not_outlive_an_owner_that_was_killed() -> None:
    program = (
        "import sys; from tools.local.postgres import temporary_server\n"
        "with temporary_server() as server:\n"
        "    print(server.dsn(), server.data_dir.parent, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        dsn, directory = owner.stdout.readline().split()
        with psycopg.connect(dsn, autocommit=True) as connection:
            owner.kill()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT pg_sleep(60)")
    deadline = time.monotonic() + 30
    while (Path(directory) / "data" / "postmaster.pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    shutil.rmtree(directory)
