"""The second process of a pipeline on one machine is refused as one, by exit code 8, from the moment on at which the
first one listens: long before that one has its slot, or has started Spark and taken its lease.
"""

import socket
from pathlib import Path

import pytest

from tests.support.commands import assert_ended
from tests.support.sources import Database
from tests.support.surfaces import Pipe
from tools.local.ports import free_port


def _listens(pipe: Pipe) -> bool:
    return any(event["event"] == "listening" for event in pipe.events())


@pytest.mark.parametrize("command", ["run", "apply"])
def test_a_second_one_is_refused_as_one_while_the_first_still_starts(
    database: Database, tmp_path: Path, command: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert Pipe(database, tmp_path)("run", "--until-caught-up").returncode == 0
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexec sleep 600\n")
    java.chmod(0o755)
    address = f"127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # Neither the source nor Java ever answers.
        nowhere = f"postgresql://postgres@127.0.0.1:{silent.getsockname()[1]}/{database.name}"
        with Pipe(database, tmp_path, dsn=nowhere) as first:
            places = {"SLUICE_TELEMETRY__LISTEN": address, "SLUICE_TELEMETRY__APPLY_LISTEN": address}
            first.environment |= {**places, "JAVA_HOME": str(tmp_path / "java")}
            first.start(command)
            first.wait(lambda: _listens(first))
            second = first(command)
    assert_ended(second, 8, address, "runs this pipeline")


def test_another_program_at_the_address_is_not_taken_for_one(database: Database, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        ended = Pipe(database, tmp_path)("run", SLUICE_TELEMETRY__LISTEN=address)
    assert_ended(ended, 2, "telemetry.listen")
