"""Random histories of one source table and four kinds of lake tables: columns come, go, exchange names and come again
between windows of any size, values are not sent, windows die, tables are read again, and older copies of the spool are
restored. A lake table that calls itself live has what the source has; no value is ever in a column that it is not of.
"""

import os
import random
import shutil
from collections import Counter
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice import faults
from sluice.contract.applied import AppliedTable
from sluice.contract.entries import Progress
from sluice.contract.schema import TableSchema
from sluice.errors import ServiceError
from sluice.store.opening import open_store
from tests.spark import lake
from tests.spark.changes import INT4, INT8, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.support.extent import slow

# HOSTILE_FIRST=1 HOSTILE_SEEDS=20 HOSTILE_STEPS=40 HOSTILE_TARGETS=4 HOSTILE_WAYS="auto merge" choose what is run.
FIRST, SEEDS = int(os.environ.get("HOSTILE_FIRST", "1")), int(os.environ.get("HOSTILE_SEEDS", "2"))
TARGETS = [
    {"kind": "mirror"},
    {"kind": "history", "name": "hist"},
    {"kind": "mirror", "deletes": "soft", "name": "soft"},
    {"kind": "changelog", "name": "log"},
]
TARGETS = TARGETS[: int(os.environ.get("HOSTILE_TARGETS", "4"))]
NAMES = "abcd"
POINTS = [
    "apply.window.before",
    "apply.read.after",
    "apply.commit.before",
    "apply.commit.after",
    "apply.schema.altered",
    "apply.log.before",
    "apply.log.after",
    "apply.boundary.after",
    "apply.complete.before",
    "apply.window.after",
]


class Killed(BaseException):
    """As if the process had died there."""


@dataclass
class Col:
    uid: int
    attnum: int
    name: str
    oid: int
    missing: int | None = None

    def value(self, number: int) -> Any:
        return f"{self.uid * 1000 + number}" if self.oid == TEXT else self.uid * 1000 + number


@dataclass
class Source:
    """`uids` names columns over all histories, those that are lost as well."""

    cols: list[Col]
    next_attnum: int
    rows: dict[int, dict[int, Any]] = field(default_factory=dict)
    version: int = 1
    generation: int = 1
    identity: str = "d"
    states: list[tuple[int, dict[int, dict[int, Any]]]] = field(default_factory=list)
    changes: list[tuple[int, int]] = field(default_factory=list)

    def schema(self) -> TableSchema:
        own = [
            column(one.name, one.attnum, one.oid, missing=None if one.missing is None else str(one.missing))
            for one in self.cols
        ]
        return table_schema(column("id", 1, INT8, key=True), *own, version=self.version, identity=self.identity)

    def read(self, row: dict[int, Any], col: Col) -> Any:
        found = row.get(col.uid, col.missing)
        return None if found is None else (str(found) if col.oid == TEXT else int(found))

    def sent(self, key: int) -> dict[str, Any]:
        return {"id": key, **{col.name: self.read(self.rows[key], col) for col in self.cols}}


class Story:
    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.pipeline = Pipeline(spark, folder)
        self.uids = 0
        self.count = 0
        self.log: list[str] = []
        self.seen: Counter[str] = Counter()
        self.restored = False
        self.source = Source([], 2)
        for name in self.random.sample(NAMES, 2):
            self._add(name, missing=False)
        for key in (1, 2, 3):
            self.source.rows[key] = {col.uid: col.value(0) for col in self.source.cols}
        self.pipeline.begin(self.source.schema(), *map(self.source.sent, self.source.rows))
        self._begun()
        self.copies: list[tuple[Path, Any, Source]] = []

    def _add(self, name: str, *, missing: bool) -> None:
        self.uids += 1
        oid = self.random.choice([INT4, TEXT])
        self.source.cols.append(
            Col(self.uids, self.source.next_attnum, name, oid, self.uids * 1000 + 999 if missing else None)
        )
        self.source.next_attnum += 1

    def _begun(self) -> None:
        self.source.states = [(self.pipeline.manifest.lsn, deepcopy(self.source.rows))]
        self.source.changes = []

    # What happens.

    def step(self) -> None:
        steps = ["rows"] * 8 + ["shape"] * 4 + ["apply"] * 4 + ["copy", "resync", "die", "die"]
        steps += ["restore", "restore"] if self.copies else []
        name = self.random.choice(steps)
        self.log.append(name)
        getattr(self, f"do_{name}")()

    def do_rows(self) -> None:
        source, manifest = self.source, self.pipeline.manifest
        changes: list[Change] = []
        whole = source.identity == "f"
        for _ in range(self.random.randint(1, 4)):
            kind = self.random.choice("iuuuudk")
            if kind == "i" or not source.rows:
                free = sorted(set(range(1, 8)) - source.rows.keys())
                if not free:
                    continue
                key = self.random.choice(free)
                source.rows[key] = {col.uid: self._value(col) for col in source.cols}
                changes.append(Change("i", source.sent(key)))
                continue
            key = self.random.choice(sorted(source.rows))
            before = source.sent(key)
            if kind == "d":
                del source.rows[key]
                changes.append(Change("d", old=before if whole else {"id": key}))
                continue
            now = key
            if kind == "k":
                free = sorted(set(range(1, 8)) - source.rows.keys())
                if not free:
                    continue
                now = self.random.choice(free)
            row = dict(source.rows.pop(key))
            unsent = []
            for col in source.cols:
                if self.random.random() < 0.5:
                    row[col.uid] = self._value(col)
                elif col.oid == TEXT and not whole and source.read(row, col) is not None and self.random.random() < 0.7:
                    unsent.append(col.name)
            source.rows[now] = row
            sent = {name: value for name, value in source.sent(now).items() if name not in unsent}
            old = before if whole else {"id": key} if now != key else None
            changes.append(Change("u", sent, old=old, unchanged=tuple(unsent)))
        if changes:
            manifest.transaction(changes, source.schema())
            source.states.append((manifest.lsn, deepcopy(source.rows)))
            source.changes += [(manifest.lsn, place) for place in range(len(changes))]

    def _value(self, col: Col) -> Any:
        self.count = (self.count + 1) % 900
        return None if self.random.random() < 0.1 else col.value(self.count)

    def do_shape(self) -> None:
        source = self.source
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            kinds = ["add"] * (len(source.cols) < len(NAMES)) * 2 + ["identity"]
            kinds += ["drop", "again", "again"] * (len(source.cols) > 1) + ["rename"] * (len(source.cols) < len(NAMES))
            kinds += ["exchange"] * 2 * (len(source.cols) > 1)
            kind = self.random.choice(kinds)
            free = sorted(set(NAMES) - {col.name for col in source.cols})
            source.cols = [replace(col) for col in source.cols]
            if kind == "add":
                self._add(self.random.choice(free), missing=self.random.random() < 0.5)
            elif kind == "identity":
                source.identity = "f" if source.identity == "d" else "d"
            elif kind == "rename":
                self.random.choice(source.cols).name = self.random.choice(free)
            elif kind == "exchange":
                one, other = self.random.sample(source.cols, 2)
                one.name, other.name = other.name, one.name
            else:
                gone = self.random.choice(source.cols)
                source.cols.remove(gone)
                if kind == "again":
                    self._add(gone.name, missing=self.random.random() < 0.5)
            self.log[-1] += f" {kind}"
            source.version += 1
            self.pipeline.manifest.table(source.schema(), state="live", generation=source.generation)
            if self.random.random() < 0.3:
                self.do_rows()

    def do_resync(self) -> None:
        source, manifest = self.source, self.pipeline.manifest
        source.generation += 1
        manifest.append(Progress(), through_lsn=manifest.lsn + 40)
        schema = source.schema()
        manifest.table(schema, generation=source.generation, new=False)
        manifest.snapshot([source.sent(key) for key in source.rows], schema, generation=source.generation)
        manifest.table(schema, state="live", generation=source.generation, new=False)
        self._begun()

    def do_copy(self) -> None:
        kept = self.pipeline.folder / f"copy-{len(self.log)}"
        shutil.copytree(self.pipeline.folder / "spool", kept)
        self.copies.append((kept, copy(self.pipeline.manifest), deepcopy(self.source)))

    def do_restore(self) -> None:
        kept, manifest, source = self.copies.pop(self.random.randrange(len(self.copies)))
        spool = self.pipeline.folder / "spool"
        if self.random.random() < 0.3:  # its reports are those of now
            (reports,) = kept.rglob("apply/log") if list(kept.rglob("apply/log")) else (None,)
            (newer,) = spool.rglob("apply/log") if list(spool.rglob("apply/log")) else (None,)
            if reports is not None and newer is not None:
                shutil.rmtree(reports)
                shutil.copytree(newer, reports)
                self.log[-1] += " older than its reports"
        shutil.rmtree(spool)
        shutil.copytree(kept, spool)
        shutil.rmtree(kept)
        self.pipeline.store = open_store(f"file://{spool}", prefix="shop/", options={})
        self.pipeline.manifest, self.source = manifest, source
        manifest.store = self.pipeline.store
        self.copies = [one for one in self.copies if one[1].seq <= manifest.seq]
        self.restored = True

    def do_die(self) -> None:
        left = self.random.randint(1, 12)
        point = self.random.choice(POINTS)
        self.log[-1] += f" {point}@{left}"
        original = faults.point

        def dies(name: str) -> None:
            nonlocal left
            if name == point:
                left -= 1
                if left == 0:
                    raise Killed
            original(name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(faults, "point", dies)
            self._run()

    def _run(self) -> None:
        options: dict[str, Any] = {"max_window_bytes": 1} if self.random.random() < 0.4 else {}
        way = self.random.choice(os.environ.get("HOSTILE_WAYS", "auto auto auto merge").split())
        try:
            self.pipeline.apply(tables={"public.items": {"targets": TARGETS}}, way=way, **options)
        except Killed:
            self.log[-1] += " killed"
        except ServiceError as error:
            self.log[-1] += f" {type(error).__name__}: {error}"

    def do_apply(self) -> None:
        self._run()
        self.check()

    # What must hold.

    def check(self) -> None:
        rows = self.pipeline.reported()
        for target in TARGETS:
            key = "16385" + (f"/{target['name']}" if "name" in target else "")
            found = rows.get(key)
            if found is None:
                continue
            state = "failing" if found.failing else str(found.state)
            kind = f"{target['kind']} {target.get('deletes', '')}".strip()
            self.seen[f"{kind} {state}{' after a restore' if self.restored else ''}"] += 1
            if state == "live":
                self._equal(found, kind)
            elif state == "stale":
                self.seen[f"{kind}: {found.reason[:150]}"] += 1
            elif not self.restored:
                raise AssertionError((state, found.reason))

    def _equal(self, row: AppliedTable, kind: str) -> None:
        source = self.source
        found = lake.rows_in(self.pipeline.folder / "lake" / row.path, metadata=True)
        for one in found:
            for col in source.cols:
                value = one[col.name]
                assert value is None or int(value) // 1000 == col.uid, (
                    f"{kind}: {value!r} in column {col.name} which is number {col.uid}",
                    one,
                    source.cols,
                )
        if kind == "changelog":
            there = [(one["_sluice_lsn"], one["_sluice_ordinal"]) for one in found if not one["_sluice_snapshot"]]
            assert sorted(there) == sorted(source.changes), (kind, sorted(there), sorted(source.changes))
            return
        alive = {"history": "_sluice_is_current", "mirror soft": "_sluice_deleted_at"}.get(kind)
        present = [
            one
            for one in found
            if alive is None or (one[alive] is None if alive == "_sluice_deleted_at" else one[alive])
        ]
        self._same(present, source.rows, f"{kind} now")
        if kind == "history":
            for lsn, then in source.states:
                as_of = [
                    one
                    for one in found
                    if one["_sluice_from_lsn"] <= lsn and (one["_sluice_to_lsn"] is None or one["_sluice_to_lsn"] > lsn)
                ]
                self._same(as_of, then, f"{kind} as of {lsn}")

    def _same(self, found: list[dict[str, Any]], rows: dict[int, dict[int, Any]], what: str) -> None:
        source = self.source
        there: dict[Any, dict[str, Any]] = {}
        for one in found:
            assert one["id"] not in there, (what, "twice", one)
            there[one["id"]] = {col.name: one[col.name] for col in source.cols}
        wanted = {key: {col.name: source.read(row, col) for col in source.cols} for key, row in rows.items()}
        assert there == wanted, (what, there, wanted)


@slow
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_what_calls_itself_live_is_what_the_source_has(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    story = Story(spark, tmp_path, seed)
    try:
        for _ in range(int(os.environ.get("HOSTILE_STEPS", "40"))):
            story.step()
        story.log.append("end")
        story.do_apply()
    except BaseException:
        print(f"SEED={seed}", *story.log, sep="\n  ")
        raise
    print(f"SEED={seed}", dict(story.seen))
