"""Commands that report, while the object store accepts connections and never answers; and what a
bare `sluice` says.
"""

import json
import socket
import time
from pathlib import Path

from sluice.cli.deadline import LOOK_SECONDS
from tests.support.commands import assert_ended
from tests.support.extent import slow
from tests.support.sources import Database
from tests.support.surfaces import Pipe


def _silent(pipe: Pipe, silent: socket.socket) -> None:
    """`pipe` finds its spool at `silent`, which accepts connections and says nothing."""
    options = {
        "aws_endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
        "allow_http": "true",
        "aws_access_key_id": "x",
        "aws_secret_access_key": "y",
        "aws_region": "us-east-1",
    }
    pipe.environment |= {f"SLUICE_SPOOL__OPTIONS__{name.upper()}": value for name, value in options.items()}


@slow
def test_status_and_tables_say_within_a_bound_that_the_store_does_not_answer(
    database: Database, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pipe = Pipe(database, tmp_path, spool="s3://bucket/spool")
        began = time.monotonic()
        _silent(pipe, silent)
        status = pipe("status", "--json")
        assert_ended(status, 12)
        assert "does not answer" in json.loads(status.stdout)["problems"][0]["message"]
        assert_ended(pipe("tables"), 75, "does not answer")
        assert time.monotonic() - began < 2 * (LOOK_SECONDS + 15)


def test_a_request_ends_at_its_deadline_while_the_store_hangs(database: Database, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pipe = Pipe(database, tmp_path, spool="s3://bucket/spool")
        _silent(pipe, silent)
        began = time.monotonic()
        assert_ended(pipe("tables", "pause", "public.t"), 75, "does not answer")
        assert time.monotonic() - began < LOOK_SECONDS + 25  # a request of the library takes 75 s


def test_a_wait_is_not_held_up_by_a_spool_that_hangs(database: Database, tmp_path: Path) -> None:
    """Of the spool it asks which server the position may be of."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pipe = Pipe(database, tmp_path, spool="s3://bucket/spool")
        (tmp_path / "lake").mkdir()
        _silent(pipe, silent)
        began = time.monotonic()
        assert_ended(pipe("wait", "--now", "--timeout", "1s"), 75, "does not answer")
        assert time.monotonic() - began < 30


def test_a_bare_sluice_shows_its_help_and_no_error(database: Database, tmp_path: Path) -> None:
    for arguments in ((), ("spool",)):
        ended = Pipe(database, tmp_path)(*arguments)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith("Usage: sluice")
        assert "hint:" not in ended.stderr
