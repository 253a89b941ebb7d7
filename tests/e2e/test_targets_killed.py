"""Targets that come, go and change while `sluice up` is killed and the source is written to: every lake table is what
its source was at each commit, in its kind, or is stale by name, and `sluice plan` had said so.
"""

import json
import os
import random
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from sluice.manifest.newest_record import newest_log
from sluice.store.opening import open_store
from tests.spark import lake
from tests.support.extent import slow
from tests.support.pipeline import QUICK_JAVA, wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline, SluiceProcess

SEED = 27
ROUNDS = (("rename", "track"), ("remove", "rename to another kind"), ("kind", "again"), ("kind back", "add"))
"""What changes between two kills, each time in two ways."""
KINDS: dict[str, dict[str, Any]] = {
    "mirror": {"kind": "mirror"},
    "soft": {"kind": "mirror", "deletes": "soft"},
    "history": {"kind": "history"},
    "changelog": {"kind": "changelog"},
}
TRACKS: tuple[list[str], ...] = ([], ["v"], ["v", "w"])
SECONDS = 400.0
_TITLED = re.compile(r"^lake table public\.orders/?(\w*): (.*)$", re.MULTILINE)
Rows = set[tuple[int, int]]
PLACES = ("_sluice_lsn", "_sluice_from_lsn", "_sluice_to_lsn")


@dataclass
class Source:
    """The table `orders`, written to by one thread, and its rows at each commit, by LSN."""

    database: Database
    choice: random.Random
    at: dict[int, Rows] = field(default_factory=dict)
    newest: set[tuple[int, int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._lock = threading.Lock()
        self.failed: Exception | None = None

    def create(self) -> None:
        self.database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v int, w text)",
            "INSERT INTO orders SELECT i, i, 'w' FROM generate_series(1, 20) i",
        )
        self.commit()

    def commit(self, *statements: str) -> int:
        with self._lock, self.database.connect() as connection:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement.encode())
            row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
            assert row is not None
            found = connection.execute("SELECT id, v, w FROM orders").fetchall()
            self.newest = set(found)
            self.at[int(row[0])] = {(one[0], one[1]) for one in found}
            return int(row[0])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _write(self) -> None:
        try:
            while not self._end.wait(self.choice.random()):
                self.commit(*(self._statement() for _ in range(self.choice.randint(1, 4))))
        except Exception as error:  # noqa: BLE001 - handed to the test
            self.failed = error

    def _statement(self) -> str:
        one, other = self.choice.randrange(40), self.choice.randrange(40)
        return self.choice.choices(
            (
                f"INSERT INTO orders VALUES ({one}, {other}, 'n') ON CONFLICT DO NOTHING",
                f"UPDATE orders SET v = v + 1 WHERE id IN ({one}, {other})",
                f"UPDATE orders SET w = w || 'x' WHERE id = {one}",
                f"UPDATE orders SET id = {other} WHERE id = {one} AND {other} NOT IN (SELECT id FROM orders)",
                f"DELETE FROM orders WHERE id = {one}",
                "TRUNCATE orders",
            ),
            weights=(6, 6, 4, 4, 3, 0.2),
        )[0]


@dataclass
class Story:
    pipeline: Pipeline
    source: Source
    choice: random.Random
    targets: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: dict[str, dict[str, Any]] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    """By name, what the lake table of that name has been given first."""
    names: int = 0

    @property
    def lake(self) -> Path:
        return self.pipeline.directory / "lake" / "public"

    def write(self) -> None:
        settings = yaml.safe_load(self.pipeline.config.read_text())
        targets = [{**one, **({"name": name} if name else {})} for name, one in self.targets.items()]
        settings["tables"] = {"public.orders": {"targets": targets}}
        new = self.pipeline.config.with_suffix(".new")
        new.write_text(yaml.safe_dump(settings, sort_keys=False))
        new.replace(self.pipeline.config)

    def fresh(self, kind: str) -> str:
        self.names += 1
        name = f"{kind[:1]}{self.names}"
        self.targets[name] = dict(KINDS[kind])
        if kind == "history" and self.choice.random() < 0.5:
            self.track(name)
        self.held[name] = kind
        return name

    def track(self, name: str) -> None:
        track = self.choice.choice(TRACKS)
        self.targets[name] = {**KINDS["history"], **({"track": track} if track else {})}

    def kind(self, one: dict[str, Any]) -> str:
        return "soft" if one.get("deletes") == "soft" else str(one["kind"])

    def change(self, what: str) -> None:
        """One of the ways in which targets change, of one that is chosen."""
        name = self.choice.choice([name for name in self.targets if name])
        kind = self.kind(self.targets[name])
        if what == "add":
            self.fresh(self.choice.choice(tuple(KINDS)))
        elif what == "again":
            name = self.choice.choice(tuple(self.left))
            self.targets[name] = self.left.pop(name)
        elif what == "track":
            self.track(self.choice.choice([one for one in self.targets if self.targets[one]["kind"] == "history"]))
        elif what == "kind":
            self.targets[name] = dict(KINDS[self.choice.choice([one for one in KINDS if one != kind])])
        elif what == "kind back":
            for other in self.wrong():
                self.targets[other] = dict(KINDS[self.held[other]])
        else:
            self.left[name] = self.targets.pop(name)
            if what == "rename":
                self.fresh(kind)
            elif what == "rename to another kind":
                self.fresh(self.choice.choice([one for one in KINDS if one != kind]))

    def rows(self) -> dict[str, Any]:
        log = newest_log(open_store(self.pipeline.spool_uri, prefix="t/", options={})).read()
        return {row.target: row for row in log.tables.values() if row.schema_name == "public"} if log else {}

    def wrong(self) -> set[str]:
        return {name for name, one in self.targets.items() if name and self.kind(one) != self.held[name]}

    def reach(self, process: SluiceProcess) -> None:
        """Each target is complete through now, or stale because its lake table holds another kind."""
        lsn = self.source.commit()
        wrong = self.wrong()

        def there() -> bool:
            rows = self.rows()
            return rows.keys() == self.targets.keys() and all(
                row.state == "stale" if name in wrong else row.state == "live" and row.complete_through_lsn >= lsn
                for name, row in rows.items()
            )

        try:
            wait_until(there, what="each is complete", processes=(process,), timeout=SECONDS)
        except AssertionError as error:
            rows = {name: (row.state, row.complete_through_lsn, row.why) for name, row in self.rows().items()}
            raise AssertionError(f"{lsn} {wrong} {self.targets} {rows} {error}") from error

    def check(self) -> None:
        assert self.source.failed is None, self.source.failed
        at = self.source.at
        for path in sorted(self.lake.iterdir()):
            name = "" if path.name == "orders" else path.name
            if not (path / "_delta_log").exists():
                continue
            rows = lake.rows_in(path, metadata=True)
            kind = self.held.get(name, "mirror")
            last = max((row.get(one) or 0 for row in rows for one in PLACES), default=0)
            if kind in ("mirror", "soft"):
                found = [(row["id"], row["v"]) for row in rows if not row.get("_sluice_deleted_at")]
                assert len(found) == len(set(found)), name
                assert set(found) in at.values(), f"{name} was never the source"
                if kind == "soft":
                    assert len({row["id"] for row in rows}) == len(rows), name
            elif kind == "history":
                first = min((row["_sluice_from_lsn"] for row in rows), default=0)
                for lsn, wanted in at.items():
                    seen = [(row["id"], row["v"]) for row in rows if _is_of(row, lsn)]
                    if first <= lsn <= last:
                        assert (len(seen), set(seen)) == (len(wanted), wanted), f"{name} as of {lsn}"
            else:
                self.check_changelog(name, rows, last)

    def check_changelog(self, name: str, rows: list[dict[str, Any]], last: int) -> None:
        changes = sorted(rows, key=lambda row: (row["_sluice_lsn"], row["_sluice_ordinal"]))
        places = [(row["_sluice_lsn"], row["_sluice_ordinal"], row["id"]) for row in changes]
        assert len(set(places)) == len(places), f"{name} has a change twice"
        state: dict[int, int] = {}
        lsns: Iterator[int] = iter(sorted(lsn for lsn in self.source.at if lsn <= last))
        lsn = next(lsns, None)
        for row in [*changes, {"_sluice_lsn": last + 1, "_sluice_op": ""}]:
            while lsn is not None and lsn < row["_sluice_lsn"]:
                if changes and lsn >= changes[0]["_sluice_lsn"]:
                    assert set(state.items()) == self.source.at[lsn], f"{name} as of {lsn}"
                lsn = next(lsns, None)
            op = row["_sluice_op"]
            if op == "t":
                state = {}
            elif op in ("i", "u", "d"):
                old = (row["_sluice_old"] or row)["id"]
                if op != "i":
                    state.pop(old)
                if op != "d":
                    assert row["id"] not in state
                    state[row["id"]] = row["v"]

    def current(self) -> None:
        """What stands for the source now is the source, in all columns."""
        wrong = self.wrong()
        wanted = sorted(self.source.newest)
        for name in self.targets:
            if name in wrong or self.held.get(name) == "changelog":
                continue
            path = self.lake / (name or "orders")
            rows = lake.rows_in(path, metadata=True)
            rows = [row for row in rows if row.get("_sluice_is_current", True) and not row.get("_sluice_deleted_at")]
            assert sorted((row["id"], row["v"], row["w"]) for row in rows) == wanted, name

    def left_versions(self) -> dict[str, int]:
        """Of lake tables that are no targets now."""
        folders = {name: self.lake / name for name in self.left}
        return {name: lake.version(path) for name, path in folders.items() if path.exists()}

    def planned(self) -> dict[str, str]:
        """By the name of each lake table, why `plan` says that it would be left behind or stale."""
        answer = self.pipeline.run("plan", "--json")
        found = [one["why"] for one in json.loads(answer.stdout)["tables"] if one["effect"] == "stop"]
        assert answer.returncode == (14 if found else 0), answer.stderr
        return dict(_TITLED.findall("\n".join(found)))


def _is_of(version: dict[str, Any], lsn: int) -> bool:
    until = version["_sluice_to_lsn"]
    return bool(version["_sluice_from_lsn"] <= lsn and (until is None or lsn < until))


def kill_in_between(story: Story) -> None:
    """Starts, and kills at some moment."""
    process = story.pipeline.start("up")
    begun = process.log_start

    def started() -> bool:
        return b"Spark has started" in process.log.read_bytes()[begun:]

    if story.choice.random() < 0.8:
        wait_until(started, what="Spark has started", processes=(process,), timeout=SECONDS)
    # Some moment is what is wanted, and nothing is waited for.
    threading.Event().wait(story.choice.random() * 6)
    process.kill()


def refuse_while_running(process: SluiceProcess) -> None:
    """Other targets are not taken by a process that runs, and it goes on."""
    seen = process.log.stat().st_size
    os.kill(process.pid, signal.SIGHUP)
    wait_until(
        lambda: b"is not taken" in process.log.read_bytes()[seen:],
        what="other targets are refused",
        processes=(process,),
        timeout=60,
    )


@slow
@pytest.mark.timeout(3600)
def test_targets_that_change_between_kills_are_right_at_each_commit_or_stale(
    database: Database, tmp_path: Path
) -> None:
    choice = random.Random(SEED)
    source = Source(database, random.Random(SEED))
    source.create()
    pipeline = Pipeline(
        tmp_path / "pipeline",
        name="t",
        dsn=database.dsn,
        settings={
            "source": {"slot": database.slot, "publication": database.publication, "tables": ["public.*"]},
            "spool": {"max_delay": "200ms"},
            "apply": {"poll": "200ms", "driver_memory": "1GiB", "conf": QUICK_JAVA},
        },
    )
    story = Story(pipeline, source, choice)
    story.targets[""] = dict(KINDS["mirror"])
    for kind in ("soft", "history", "changelog"):
        story.fresh(kind)
    story.write()
    with source:
        process = pipeline.start("up")
        story.reach(process)
        for changes in ROUNDS:
            before = set(story.targets)
            for what in changes:
                story.change(what)
            story.write()
            planned = story.planned()
            assert planned.keys() >= before - set(story.targets)
            assert planned.keys() - set(story.left) <= story.wrong()
            if choice.random() < 0.4:
                refuse_while_running(process)
            process.kill()
            versions = story.left_versions()
            for _ in range(choice.randrange(3)):
                kill_in_between(story)
            process = pipeline.start("up")
            story.reach(process)
            assert versions == story.left_versions()
            story.check()
        story.reach(process)
    assert source.failed is None, source.failed
    story.reach(process)
    story.check()
    story.current()
    story.targets |= story.left
    story.left = {}
    for name in story.wrong():
        story.targets[name] = dict(KINDS[story.held[name]])
    process.stop()
    story.write()
    with pipeline.start("up") as process:
        story.reach(process)
        story.check()
        story.current()
        verified = pipeline.run("verify", timeout=SECONDS)
    assert verified.returncode == 0, verified.stdout + verified.stderr
