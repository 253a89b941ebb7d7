"""Hostile names in what a running pipeline says first."""

from pathlib import Path

from tests.support.looks import Pipe
from tests.hostile.test_names import ESCAPE, on_a_terminal
from tests.support.sources import Database


def test_a_name_adds_no_line_to_readyz(database: Database, tmp_path: Path) -> None:
    database.execute('CREATE TABLE "x\nhealthy\ncritical slot.lost slot sluice_shop" (id int PRIMARY KEY)')
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.applied(state="stale", reason="r")
        pipe.wait(lambda: "table.stale" in pipe.get("/readyz")[1])
        text = pipe.get("/readyz")[1]
        status = pipe("status").stdout
        print(repr(text), "\n", status)
        assert len(text.splitlines()) == 2, text


def test_the_headline_below_tables_is_safe_on_a_terminal(database: Database, tmp_path: Path) -> None:
    database.execute(f'CREATE TABLE "{ESCAPE}" (id int PRIMARY KEY)')
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.applied(state="stale", reason="r")
        shown = on_a_terminal(pipe, "tables")
        print(repr(shown))
        assert "\x1b]0;owned" not in shown
