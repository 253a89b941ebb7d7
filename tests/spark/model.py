"""The oracle: a table as a dict, random histories over it, and what a MERGE of a folded window does
to a dict.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st

from sluice.contract.schema import TableSchema
from sluice_spark.fold.fold import DELETED, KEEP, KEY, MATCH, Folded
from tests.spark.changes import INT4, INT8, TEXT, TIMESTAMP, Change, column, table_schema

SCHEMA = table_schema(
    column("id", 1, INT8, key=True), column("v", 2, INT4), column("big", 3, TEXT), column("at", 5, TIMESTAMP)
)
ID = SCHEMA.table_id
NAMES = ("id", "v", "big", "at")
Lake = dict[int, dict[str, Any]]


def row(key: int, v: int = 0, big: str | None = "B", **more: object) -> dict[str, object]:
    """One of the table."""
    return {"id": key, "v": v, "big": big, "at": None, **more}


def by_key(rows: list[dict[str, Any]]) -> dict[object, dict[str, Any]]:
    found = {one["id"]: one for one in rows}
    assert len(found) == len(rows), "two rows with one key"
    return found


def named(name: str, table_id: str = "16386") -> TableSchema:
    """Another table of the same columns."""
    return replace(SCHEMA, table_id=table_id, table_name=name)


@st.composite
def histories(draw: st.DrawFn, *, keys: int = 6, length: int = 30) -> list[tuple[Change, Lake]]:
    """Changes with the table after each."""
    table: Lake = {}
    history: list[tuple[Change, Lake]] = []
    for step in range(draw(st.integers(1, length))):
        change = (
            _insert(draw, table, keys, step)
            if draw(st.integers(0, 9)) < 3 or not table
            else _other(draw, table, keys, step)
        )
        if change is not None:
            history.append((change, {key: dict(row) for key, row in table.items()}))
    return history


def _insert(draw: st.DrawFn, table: Lake, keys: int, step: int) -> Change | None:
    free = sorted(set(range(keys)) - set(table))
    if not free:
        return None
    key = draw(st.sampled_from(free))
    special = {"at": "infinity"} if draw(st.booleans()) else None
    table[key] = {
        "id": key,
        "v": step,
        "big": draw(st.sampled_from([None, "x" * 9, f"b{step}"])),
        "at": special["at"] if special else None,
    }
    return Change("i", {**table[key], "at": None}, special=special)


def _other(draw: st.DrawFn, table: Lake, keys: int, step: int) -> Change | None:
    kind = draw(st.sampled_from(["u", "u", "u", "k", "k", "d", "d", "t"] if step % 7 else ["u", "t"]))
    if kind == "t":
        table.clear()
        return Change("t")
    key = draw(st.sampled_from(sorted(table)))
    if kind == "d":
        del table[key]
        return Change("d", {}, old={"id": key})
    row = dict(table[key])
    row["v"] = step
    old = None
    if kind == "k":
        free = sorted(set(range(keys)) - set(table))
        if not free:
            return None
        del table[key]
        row["id"], old = draw(st.sampled_from(free)), {"id": key}
    unchanged: tuple[str, ...] = ()
    if draw(st.booleans()):
        unchanged = draw(st.sampled_from([("big",), ("big", "at"), ("at",)]))
    if "big" not in unchanged:
        row["big"] = f"c{step}"
    if "at" not in unchanged:
        row["at"] = draw(st.sampled_from([None, "-infinity"]))
    table[row["id"]] = row
    sent = {name: value for name, value in row.items() if name not in unchanged and name != "at"}
    special = {"at": row["at"]} if "at" not in unchanged and row["at"] else None
    return Change("u", sent, old=old, unchanged=unchanged, special=special)


def windows(history: list[tuple[Change, Lake]], cuts: list[int]) -> list[list[Change]]:
    """The changes cut in windows, each change a transaction of its own."""
    for place, (change, _) in enumerate(history):
        change.lsn = 1000 + place
    places = sorted({0, len(history), *(cut % (len(history) + 1) for cut in cuts)})
    return [[change for change, _ in history[start:end]] for start, end in pairwise(places)]


def merged(lake: Lake, folded: Folded) -> Lake:
    """What Delta does with a folded window, on a dict: matches are found before anything changes."""
    rows = folded.rows.to_pylist()
    if folded.append or folded.replaces:
        return {**({} if folded.replaces else lake), **{row["id"]: _lake_row(row) for row in rows}}
    result = dict(lake)
    added = []
    touched: set[int] = set()
    for row in rows:
        origin = row[f"{KEY}0"]
        keeps = {item.name for item in folded.kept if row[f"{KEEP}{item.attnum}"]}
        if row[MATCH] and origin in lake:
            assert origin not in touched, "two source rows for one row of the lake"
            touched.add(origin)
            del result[origin]
            if not row[DELETED]:
                now = _lake_row(row)
                added.append({name: lake[origin][name] if name in keeps else value for name, value in now.items()})
        elif not row[DELETED]:
            assert not keeps, "an unsent value and no row to keep it from"
            added.append(_lake_row(row))
    for row in added:
        assert row["id"] not in result, "two rows with one key"
        result[row["id"]] = row
    return result


def _lake_row(row: dict[str, Any]) -> dict[str, Any]:
    special = dict(row["_sluice_special"] or {})
    return {name: special.get(name, row[name]) for name in NAMES}


def keyed_by_what_was_sent(lake: Lake, changes: list[Change]) -> Lake:
    """The rows by key when only `changes` are given: a row that takes a key takes the place
    of the row that had it.
    """
    lake = dict(lake)
    for change in changes:
        if change.op == "t":
            lake.clear()
            continue
        acts_on = (change.old or change.values)["id"]
        base = lake.pop(acts_on, {})
        if change.op != "d":
            now: dict[str, Any] = {
                name: base[name] if name in change.unchanged else change.values.get(name) for name in NAMES
            }
            lake[now["id"]] = {**now, **(change.special or {})}
    return lake
