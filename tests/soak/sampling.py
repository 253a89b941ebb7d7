"""What a long run is asked every few seconds: memory and open files of each process, objects of the spool by kind,
files and log of each lake table.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.support.fleets import below, name_of

_ENTRY = re.compile(r"\A\d{20}\.json\Z")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def processes(pids: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """By name, and `jvm` for a Java below one of them: resident bytes and open files. One that is gone is left out."""
    found = {}
    jvm = [("jvm", java) for parent in pids.values() for java in _java_below(parent)]
    for name, pid in [*pids.items(), *jvm]:
        try:
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
            found[name] = {"rss": resident, "files": _count(Path(f"/proc/{pid}/fd"))}
        except (OSError, IndexError):
            continue
    return found


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def _java_below(pid: int) -> list[int]:
    """The oldest one, which may start others."""
    began = {one: when for one, when in below(pid).items() if name_of(one) == "java"}
    return sorted(began, key=lambda one: began[one])[:1]


def spool(folder: Path) -> dict[str, dict[str, int]]:
    """Objects and bytes by folder below a pipeline's own prefix. Segments of all tables are one kind, and so are
    staged files.
    """
    found: dict[str, dict[str, int]] = {}
    for place, _, names in os.walk(folder):
        parts = Path(place).relative_to(folder).parts
        kind = "/".join(parts[:1] if parts[:1] in (("data",), ("stage",), ("repair",)) else parts)
        for name in names:
            try:
                size = Path(place, name).stat().st_size
            except FileNotFoundError:
                continue
            counted = found.setdefault(kind, {"objects": 0, "bytes": 0})
            counted["objects"] += 1
            counted["bytes"] += size
    return found


def newest_checkpoint_bytes(folder: Path) -> int:
    """The size of the state that a start begins from, 0 while there is none."""
    try:
        newest = max((folder / "manifest" / "checkpoint").glob("*.json"), default=None)
        return newest.stat().st_size if newest else 0
    except FileNotFoundError:
        return 0


def lake(folder: Path, *, counted: bool) -> dict[str, dict[str, int]]:
    """By table: entries of its log, all objects in its log and, if `counted`, data files of its newest version."""
    found = {}
    for log in sorted(folder.glob("*/*/_delta_log")):
        names = [path.name for path in log.iterdir()]
        table = found[log.parent.name] = {
            "entries": sum(1 for name in names if _ENTRY.match(name)),
            "log": len(names),
        }
        if counted:
            try:
                table["data_files"] = len(DeltaTable(log.parent).file_uris())
            except (DeltaError, OSError):
                continue  # between two looks of ours its log moved on
    return found


def line(**fields: Any) -> str:
    return json.dumps(fields, separators=(",", ":")) + "\n"
