"""Hostile names of tables in every place where people and programs read them."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.support.command_line import Sluice
from tests.support.extent import slow
from tests.support.sources import Database
from tests.support.surfaces import Pipe

ESCAPE = "e\x1b]0;owned\x07\x1b[31mred"
LINE = "x\npublic.orders  live   mirror  0/FFFFFFFF  1  1  0 s"
STATE = "x\nhealthy\ncritical slot.lost slot sluice_shop"
HTML = '<img src=x onerror="alert(1)">'
QUOTE = "q\"'\\{}"


def create(database: Database) -> None:
    for name in (ESCAPE, LINE, STATE, HTML, QUOTE):
        quoted = name.replace('"', '""')
        database.execute(f'CREATE TABLE "{quoted}" (id int PRIMARY KEY)', f'INSERT INTO "{quoted}" VALUES (1)')


def on_a_terminal(pipe: Pipe, *arguments: str) -> str:
    """What a person's terminal gets, stdout and stderr."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sluice", *arguments],
        env={**pipe.environment, "TERM": "xterm", "COLUMNS": "200"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            break
        if not part:
            break
        seen += part
    os.close(leader)
    process.wait()
    return seen.decode(errors="replace")


@slow
def test_no_escape_sequence_of_a_name_reaches_a_terminal(database: Database, tmp_path: Path) -> None:
    create(database)
    database.execute(f'CREATE TABLE "{ESCAPE}2" (id int)')
    pipe = Pipe(database, tmp_path)
    commands = (
        "check",
        "setup",
        "run --until-caught-up",
        "status",
        "tables",
        "check",
        "spool ls",
        "setup --dry-run",
        "setup --print-sql",
    )
    shown: dict[str, str] = {}
    for command in commands:
        shown[command] = shown.get(command, "") + on_a_terminal(pipe, *command.split())
        if command.startswith("run"):
            pipe.applied(state="stale", reason="r")
    assert not [command for command, text in shown.items() if "\x1b]0;" in text]


def test_what_check_and_snapshot_pipe_holds_no_control_character(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    create(database)
    database.execute(f'CREATE TABLE "{ESCAPE}2" (id int)')
    pipe = Pipe(database, tmp_path, command=command)
    seen = pipe("check")
    near = pipe("resync", "public.e\x1b]0;owned\x07\x1b[31mre")
    assert "\x1b" not in seen.stdout + near.stderr
    spelled = [
        line.partition("SQL: ")[2].partition("  (")[0]
        for line in seen.stdout.splitlines()
        if 'U&"' in line and "..." not in line
    ]
    assert spelled, seen.stdout
    database.execute(*spelled)


@slow
def test_a_name_adds_no_line_to_tables_or_readyz(database: Database, tmp_path: Path) -> None:
    create(database)
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.applied(state="stale", reason="r")
        listed = pipe("tables").stdout
        assert len(listed.splitlines()) == 6, listed
        pipe.wait(lambda: "table.stale" in pipe.get("/readyz")[1])
        text = pipe.get("/readyz")[1]
        assert all(line.split(" ")[0] in ("critical", "warning", "info", "degraded") for line in text.splitlines()), (
            text
        )
        assert len(text.splitlines()) == 2, text
        metrics = pipe.get("/metrics")[1]
        assert not [line for line in metrics.splitlines() if line.startswith(("public.orders", "healthy"))]
