"""Columns under rules that are renamed, exchanged, dropped and added again while ingest is killed and the source is
written to: what the rules keep out is in no object and no log, whatever state the table comes to by that.
"""

import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sluice.manifest.reader import load_state
from sluice.store.opening import open_store
from tests.support import canary
from tests.support.background import beside
from tests.support.column_rules import HIDDEN
from tests.support.extent import slow
from tests.support.pipeline import must, new_pipeline, wait_until
from tests.support.sources import Database
from tools.local.sluice import SluiceProcess

ROUNDS = 25
KEY = b"a key of some more than 16 bytes"
SECONDS = 120.0
OPEN, SECRET, MAIL, NOTE, DEFAULTED = "open", "secret", "mail", "note", "defaulted"
"""Columns by what is in them: all but the first have what must not be stored, a note behind its fourth character."""
VALUES = {
    OPEN: "'open ' || i",
    SECRET: f"'{HIDDEN} ' || i",
    MAIL: f"'{HIDDEN}@' || i",
    NOTE: f"'äöüß{HIDDEN}' || i",
    DEFAULTED: f"'{HIDDEN} more ' || i",
}


@dataclass
class People:
    """The table `people`, its columns by what they hold, and one thread that writes it."""

    database: Database
    choice: random.Random
    called: dict[str, str] = field(default_factory=lambda: {one: one for one in (OPEN, SECRET, MAIL, NOTE)})
    number: int = 0
    _lock: Any = field(default_factory=threading.RLock)

    def create(self) -> None:
        self.database.execute(
            "CREATE TABLE people (id int PRIMARY KEY, open text, secret text, mail text, note text)",
            *(f"ALTER TABLE people ALTER {name} SET STORAGE EXTERNAL" for name in ("secret", "note")),
            f"INSERT INTO people (id, open, secret, mail, note) {self._rows()}",
        )

    def _rows(self) -> str:
        values = ", ".join(VALUES[one] for one in self.called)
        return f"SELECT i, {values} FROM generate_series(1, 20) i"

    def change(self) -> str:
        """A change of columns, with rows before it and after it in its transaction."""
        with self._lock:
            self.number += 1
            what = self.choice.choice(("rename", "rename", "exchange", "drop and add", "add", "drop", "type"))
            holding = [one for one in self.called if one != OPEN]
            one = self.choice.choice(holding)
            name, new = self.called[one], f"{self.choice.choice((one.split()[0], OPEN, 'x'))}_{self.number}"
            statements = {
                "rename": [f"RENAME {name} TO {new}"],
                "exchange": [
                    f"RENAME {name} TO between",
                    f"RENAME {self.called[OPEN]} TO {name}",
                    f"RENAME between TO {self.called[OPEN]}",
                ],
                "drop and add": [f"DROP {name}", f"ADD {name} text DEFAULT '{HIDDEN} default'"],
                "add": [f"ADD {new} text DEFAULT '{HIDDEN} default'"],
                "drop": [f"DROP {name}"],
                "type": [f"ALTER {name} TYPE varchar(20000)"],
            }[what]
            if what == "drop" and len(holding) < 3:
                return ""
            with self.database.connect() as connection, connection.transaction():
                connection.execute(self._statement().encode())
                for statement in statements:
                    connection.execute(f"ALTER TABLE people {statement}".encode())
                if what == "rename":
                    self.called[one] = new
                elif what == "exchange":
                    self.called[one], self.called[OPEN] = self.called[OPEN], name
                elif what == "drop":
                    del self.called[one]
                elif what == "add":
                    self.called[f"{DEFAULTED} {self.number}"] = new
                connection.execute(self._statement().encode())
            return f"{what} {name}"

    def _statement(self) -> str:
        one = self.choice.choice(tuple(self.called))
        value = VALUES[one.split()[0]].replace("|| i", f"|| repeat('{HIDDEN}', {self.choice.choice((1, 1, 900))})")
        if one == OPEN:
            value = f"'open {self.number}'"
        key, other = self.choice.randrange(30), self.choice.randrange(30)
        columns = ", ".join(self.called.values())
        values = ", ".join(VALUES[name.split()[0]] for name in self.called)
        return self.choice.choice(
            (
                f"INSERT INTO people (id, {columns}) SELECT i, {values} FROM (SELECT {key} i) k ON CONFLICT DO NOTHING",
                f"UPDATE people SET {self.called[one]} = {value} WHERE id IN ({key}, {other})",
                f"UPDATE people SET id = {other} WHERE id = {key} AND {other} NOT IN (SELECT id FROM people)",
                f"DELETE FROM people WHERE id = {key}",
            )
        )

    def write(self, ended: threading.Event) -> None:
        while not ended.wait(self.choice.random() / 5):
            with self._lock:
                self.database.execute(self._statement())


@slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.parametrize("signalled", [True, False], ids=["signalled", "seen"])
def test_what_the_rules_keep_out_is_stored_nowhere_whatever_becomes_of_the_columns_between_kills(
    database: Database, tmp_path: Path, identity: str, signalled: bool
) -> None:
    people = People(database, random.Random(f"{identity} {signalled}"))
    people.create()
    database.execute(f"ALTER TABLE people REPLICA IDENTITY {identity}")
    (tmp_path / "key").write_bytes(KEY)
    rules: dict[str, Any] = {
        SECRET: "exclude",
        MAIL: {"hash": "hmac-sha256", "key_file": str(tmp_path / "key")},
        NOTE: {"truncate": 4},
    }
    folder = tmp_path / "pipeline"
    tables = {"public.people": {"columns": rules, "new_columns": "exclude"}}
    pipeline = new_pipeline(database, folder, spool={"max_delay": "50ms"}, tables=tables)
    if signalled:
        must(pipeline, "setup", "--ddl-signal", "--apply")
    store, states = open_store(pipeline.spool_uri, prefix="t/", options={}), list[str]()

    def reach(process: SluiceProcess) -> None:
        lsn = database.lsn()
        wait_until(
            lambda: load_state(store).through_lsn >= lsn, what="it is read", processes=(process,), timeout=SECONDS
        )

    def state() -> str:
        tables = load_state(store).tables.values()
        return next((str(one.state) for one in tables if one.table_name == "people"), "")

    with beside(people.write):
        process = pipeline.start("run")
        wait_until(lambda: state() == "live", what="it is live", processes=(process,), timeout=SECONDS)
        for number in range(ROUNDS):
            told = [people.change() for _ in range(people.choice.randint(1, 3))]
            if people.choice.random() < 0.6:
                process.kill()
                told += [people.change() for _ in range(people.choice.randint(0, 2))]
                process = pipeline.start("run")
            reach(process)
            states.append(state())
            found = canary.in_stored(folder, HIDDEN)
            assert found == [], f"round {number}: {told}, {states[-1]}"
            if states[-1] in ("stale", "quarantined"):
                pipeline.run("resync", "public.people")
    process.stop()
    assert canary.in_stored(folder, "äöüß"), "the scan reads what is compressed"
    print(states)
    assert "live" in states
