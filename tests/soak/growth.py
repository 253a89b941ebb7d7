"""What the samples of a long run say: a series for each thing that must not grow, and its verdict. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.flatness import Bound, Halves, halves

MIB = 1 << 20
_MEMORY, _JAVA, _FILES = Bound(0.15, 16), Bound(0.25, 64), Bound(0.1, 10)
_OBJECTS, _BYTES = Bound(0.25, 25), Bound(0.25, 1)
BOUNDS: Mapping[str, Bound] = {
    "resident memory of ingest, MiB": _MEMORY,
    "resident memory of the applier (Python), MiB": _MEMORY,
    "resident memory of the applier (JVM), MiB": _JAVA,
    "open files of ingest": _FILES,
    "open files of the applier (Python)": _FILES,
    "open files of the applier (JVM)": Bound(0.1, 40),
    # Cleaned back to a checkpoint, of which there is one each fifty versions: a saw of that height.
    "entries of lake logs, most of a table": Bound(0.25, 100),
    "objects in lake logs, most of a table": Bound(0.25, 400),
    "data files of a lake table, most of a table": Bound(0.25, 8),
    "data files of all lake tables in use": Bound(0.25, 16),
    "newest checkpoint, KiB": Bound(0.25, 16),
    # Few values, on a machine that may do other things.
    "start of ingest, s": Bound(1.0, 1.0),
    "start of the applier, s": Bound(1.0, 3.0),
}
"""How far the second half may lie above the first. What is below `spool` has a bound for objects and one for bytes."""
PASSING = "made_"
"""How names of tables begin that the load makes and drops. The lake keeps the last state of a dropped table."""
_KEPT = ("apply/lease",)
"""Folders of the spool where something stays for ever by design: some 60 bytes for each start of the applier."""
_NAMES = {"ingest": "ingest", "applier": "the applier (Python)", "jvm": "the applier (JVM)"}


@dataclass(frozen=True)
class Series:
    """What was measured at which second of the run, in the part of it that is judged."""

    name: str
    points: tuple[tuple[float, float], ...]
    bound: Bound

    @property
    def verdict(self) -> Halves | None:
        return halves([value for _, value in self.points], self.bound)


def read(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def series(lines: Iterable[dict[str, Any]], *, warm: bool = False) -> list[Series]:
    """Every series, in the order of the page; with `warm` also from before what is judged."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        if line.get("phase") == "warm" and not warm:
            continue
        for name, value in _measured(line):
            found.setdefault(name, []).append((line["at"], value))
    known = [name for name in BOUNDS if name in found] + sorted(found.keys() - BOUNDS.keys())
    return [Series(name, tuple(found[name]), _bound(name)) for name in known]


def grown(found: Iterable[Series]) -> list[str]:
    """What the second half has more of than it may, in words."""
    said = []
    for one in found:
        verdict = one.verdict
        if verdict is not None and verdict.grows:
            said.append(f"{one.name}: {verdict.first:.1f}, then {verdict.second:.1f}; at most {verdict.most:.1f}")
    return said


def _bound(name: str) -> Bound:
    return BOUNDS.get(name) or (_OBJECTS if name.startswith("objects") else _BYTES)


def _measured(line: dict[str, Any]) -> Iterable[tuple[str, float]]:
    if line["what"] == "start":
        yield f"start of {'ingest' if line['process'] == 'ingest' else 'the applier'}, s", line["seconds"]
    if line["what"] != "sample":
        return
    for process, seen in line["processes"].items():
        yield f"resident memory of {_NAMES[process]}, MiB", seen["rss"] / MIB
        yield f"open files of {_NAMES[process]}", seen["files"]
    for kind, seen in line["spool"].items():
        if kind in _KEPT:
            continue
        yield f"objects of the spool below {kind}/", seen["objects"]
        yield f"MiB of the spool below {kind}/", seen["bytes"] / MIB
    yield "newest checkpoint, KiB", line["checkpoint_bytes"] / 1024
    tables = line["lake"].values()
    if tables:
        yield "entries of lake logs, most of a table", max(table["entries"] for table in tables)
        yield "objects in lake logs, most of a table", max(table["log"] for table in tables)
    counted = {name: table["data_files"] for name, table in line["lake"].items() if "data_files" in table}
    if counted:
        yield "data files of a lake table, most of a table", max(counted.values())
        yield (
            "data files of all lake tables in use",
            sum(files for name, files in counted.items() if not name.startswith(PASSING)),
        )
