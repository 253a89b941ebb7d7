"""A table whose rows are followed: each has a name that no change touches, so that it is known which rows of two
versions are the same, whatever their keys are.
"""

import random
from collections import Counter
from typing import Any

from tests.spark.changes import INT4, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline

SCHEMA = table_schema(column("id", 1, INT4, key=True), column("name", 2, TEXT), column("v", 3, INT4))
Row = dict[str, Any]
Feed = Counter[tuple[str, int, str, int]]
"""What readers of changes see: (change, id, name, v)."""


class FollowedRows:
    """The rows of the source by their names, and changes of them at random, `rows` by `moment` as the entries of
    the manifest left them.
    """

    def __init__(self, pipeline: Pipeline, seed: int, *, rows: int = 40, moves: bool = True) -> None:
        """With `moves` rows may get other keys."""
        self._moves = moves
        self._choice = random.Random(seed)
        self._manifest = pipeline.manifest
        self._made = 0
        self._settled: set[str] = set()
        self.rows: dict[str, Row] = {}
        for _ in range(rows):
            self._new()
        pipeline.begin(SCHEMA, *self.rows.values())
        self.by_seq = {pipeline.manifest.seq: dict(self.rows)}

    def _new(self) -> Row:
        key = self._key()
        name = f"n{self._made}"
        self.rows[name] = {"id": key, "name": name, "v": self._choice.randrange(100)}
        return self.rows[name]

    def _key(self) -> int:
        """One that no row ever had, anywhere among the others."""
        self._made += 1
        return self._made * 7919 % 10_007

    def _some(self) -> Row:
        names: list[str] = sorted(self.rows.keys() - self._settled)
        return self.rows[self._choice.choice(names)]

    def _one(self) -> list[Change]:
        what = self._choice.choice(["new", "new", "value", "value", "value", "key", "gone", "again", "brief"])
        if what == "new" or len(self.rows) - len(self._settled) < 5:
            return [Change("i", self._new())]
        row = self._some()
        if what == "gone":
            del self.rows[row["name"]]
            return [Change("d", old={"id": row["id"]})]
        if what == "again" and row == list(self.by_seq.values())[-1].get(row["name"]):
            # Under the key that it had: the net change of that key is an update.
            self._settled.add(row["name"])
            after = self.rows[row["name"]] = {**row, "v": self._choice.randrange(100)}
            return [Change("d", old={"id": row["id"]}), Change("i", after)]
        if what == "brief":
            brief = self._new()
            del self.rows[brief["name"]]
            return [Change("i", brief), Change("d", old={"id": brief["id"]})]
        if what == "key" and self._moves:
            after = self.rows[row["name"]] = {**row, "id": self._key()}
            return [Change("u", after, old={"id": row["id"]})]
        after = {**row, "v": self._choice.randrange(100)}
        self.rows[row["name"]] = after
        return [Change("u", after)]

    def window(self, *, changes: int = 8, truncates: bool = False, only: str = "") -> int:
        """One transaction. Returns its entry's number."""
        made: list[Change] = []
        self._settled.clear()
        if truncates:
            self.rows.clear()
            made.append(Change("t"))
        for _ in range(changes):
            if only == "new":
                made.append(Change("i", self._new()))
            elif only == "gone" and self.rows:
                row = self._some()
                del self.rows[row["name"]]
                made.append(Change("d", old={"id": row["id"]}))
            elif not only:
                made += self._one()
        self._manifest.transaction(made, SCHEMA)
        self.by_seq[self._manifest.seq] = dict(self.rows)
        return self._manifest.seq


def feed_of(before: dict[str, Row], after: dict[str, Row]) -> Feed:
    """What readers are to see of a step from `before` to `after`."""
    found: Feed = Counter()
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if old is not None:
            found["update_preimage" if new is not None else "delete", old["id"], name, old["v"]] += 1
        if new is not None:
            found["update_postimage" if old is not None else "insert", new["id"], name, new["v"]] += 1
    return found


def without_no_change(found: Feed) -> Feed:
    """Updates that leave a row as it was say nothing."""
    rest = Counter(found)
    for (what, key, name, v), count in found.items():
        if what == "update_preimage":
            same = min(count, found["update_postimage", key, name, v])
            rest[what, key, name, v] -= same
            rest["update_postimage", key, name, v] -= same
    return +rest
