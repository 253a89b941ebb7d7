"""Hostile names of tables in every surface."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.support.looks import Pipe
from tests.support.sources import Database

ESCAPE = "e\x1b]0;owned\x07\x1b[31mred"
LINE = "x\npublic.orders  live   mirror  0/FFFFFFFF  1  1  0 s"
HTML = '<img src=x onerror="alert(1)">'
QUOTE = "q\"'\\{}"


def create(database: Database) -> None:
    for name in (ESCAPE, LINE, HTML, QUOTE):
        quoted = name.replace('"', '""')
        database.execute(f'CREATE TABLE "{quoted}" (id int PRIMARY KEY)', f'INSERT INTO "{quoted}" VALUES (1)')


def on_a_terminal(pipe: Pipe, *arguments: str) -> str:
    """What a person's terminal gets, stdout and stderr."""
    leader, follower = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "service", *arguments], env={**pipe.environment, "TERM": "xterm", "COLUMNS": "200"}, stdin=follower, stdout=follower, stderr=follower)
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
    process.wait()
    return seen.decode(errors="replace")


def prepared(database: Database, tmp_path: Path) -> Pipe:
    create(database)
    pipe = Pipe(database, tmp_path)
    assert pipe("run", "--until-caught-up").returncode == 0
    return pipe


def test_piped_tables_are_one_line_each(database: Database, tmp_path: Path) -> None:
    pipe = prepared(database, tmp_path)
    seen = pipe("tables")
    lines = seen.stdout.splitlines()
    print(seen.stdout, seen.stderr)
    assert len(lines) == 5, "docs/status.md: what is piped is never folded or cut: each table is one line"


def test_no_escape_sequence_of_a_name_reaches_a_terminal(database: Database, tmp_path: Path) -> None:
    pipe = prepared(database, tmp_path)
    pipe.applied(state="stale", reason="r")
    shown = {command: on_a_terminal(pipe, *command.split()) for command in ("status", "tables", "check", "spool ls", "setup --dry-run")}
    for command, text in shown.items():
        print(command, "RAW" if "\x1b]0;owned" in text else "clean", [l for l in text.splitlines() if "owned" in l][:2])
    assert not [command for command, text in shown.items() if "\x1b]0;owned" in text]


def test_no_escape_sequence_of_a_name_is_piped_by_check_or_copy(database: Database, tmp_path: Path) -> None:
    create(database)
    database.execute(f'CREATE TABLE "{ESCAPE}2" (id int)')
    pipe = Pipe(database, tmp_path)
    seen = pipe("check")
    near = pipe("copy", "public.e\x1b]0;owned\x07\x1b[31mre")
    print(repr(seen.stdout[:1500]), repr(near.stderr))
    assert "\x1b" not in seen.stdout + near.stderr


def test_readyz_lines_and_metrics_and_logs_hold_hostile_names(database: Database, tmp_path: Path) -> None:
    create(database)
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.applied(state="stale", reason="r")
        pipe.wait(lambda: "table.stale" in pipe.get("/readyz")[1])
        text = pipe.get("/readyz")[1]
        metrics = pipe.get("/metrics")[1]
        print(repr(text), [l for l in metrics.splitlines() if "orders" in l or "onerror" in l][:6])
        assert all(line.split(" ")[0] in ("critical", "warning", "info", "degraded") for line in text.splitlines()), text
        assert not [l for l in metrics.splitlines() if l.startswith("public.orders")]
