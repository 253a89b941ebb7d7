"""What one commit of a Delta log did, and whether it may stand between two of ours.

Owns the judgement: a foreign commit may rearrange or maintain files, it may not change rows or
columns. A commit's description of itself is trusted only where it admits a change. Pure: bytes in,
verdict out. No path of a data file, no predicate and no statistic reaches a message, because they
may hold values. (Delta protocol: Delta Log Entries, Actions.)
"""

import base64
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from sluice.errors import UnsupportedChange

TAG = "sluice"
AFTER = "after"
ENTRY = "entry"
"""Our commits' user metadata: {TAG: application id, AFTER: the Delta version through which the
table had been looked at, ENTRY: the hash of the manifest entry that the marker names, or of the
columns that a change of columns leads to}.
"""
ABSENT = "absent"
"""In place of the hash of an entry that the manifest does not have, and did not prune."""

COMMIT = re.compile(r"(\d{20})\.json")
"""The name of a commit's file in the log, with its version."""
_TRACKED = ("baseRowId", "defaultRowCommitVersion")
_REARRANGING = frozenset(
    {
        "OPTIMIZE",
        "REORG",
        "ROW TRACKING BACKFILL",
        "ROW TRACKING UNBACKFILL",
        "COMPUTE STATS",
        "Deletion Vector Tombstones",
    }
)
"""Operations that by definition keep the rows of the files they rewrite. Any writer may set
dataChange to false, so that alone proves nothing.
"""
_SHOWN = 60
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_UUID_CHARACTERS = 20


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit. `files` are the ones it brought (path below the table or absolute, bytes; -1: not
    said), `removed` the paths of those it took away.

    `changes` says that it adds or removes rows by its own account, `moves` that it rewrites files;
    `columns` is the schema if it states one, `metrics` are the numbers that it says of itself. `tracked` are the
    numbers in its actions from which ids of rows follow, by the path of a data file as the log spells it.
    """

    version: int
    operation: str = ""
    at_ms: int = 0
    engine: str = ""
    user: str = ""
    tag: Mapping[str, Any] = field(default_factory=dict)
    markers: Mapping[str, int] = field(default_factory=dict)
    changes: bool = False
    moves: bool = False
    columns: Any = None
    files: tuple[tuple[str, int], ...] = ()
    removed: frozenset[str] = frozenset()
    metrics: Mapping[str, int] = field(default_factory=dict)
    tracked: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def is_of(self, app_id: str) -> bool:
        """Whether the applier that works under `app_id` made it."""
        return app_id in self.markers or self.tag.get(TAG) == app_id

    def description(self) -> str:
        """What it was, when and by whom, as far as it says so."""
        when = "a time not recorded"
        # Other people's times may be anything.
        with suppress(ValueError, OverflowError, OSError):
            when = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="seconds") if self.at_ms else when
        by = ", ".join(text for text in (_short(self.engine), self.user and f"user {_short(self.user)}") if text)
        return (
            f"{_short(self.operation) or 'an operation not recorded'} at {when} made version "
            f"{self.version} ({by or 'by an unknown engine'})"
        )


def commit_name(version: int) -> str:
    """What `COMMIT` reads."""
    return f"{version:020d}.json"


def tag(app_id: str, *, after: int, entry: str = "") -> str:
    """The user metadata of a commit of ours. `entry` is the hash of the manifest entry that its marker names."""
    return json.dumps({TAG: app_id, AFTER: after} | ({ENTRY: entry} if entry else {}))


def read_commit(version: int, lines: Iterable[bytes], *, name: str) -> Commit:
    """The commit in the log file `name`. Raises UnsupportedChange when it is empty or damaged."""
    reader = _Reader()
    try:
        for line in lines:
            if line.strip():
                reader.take(json.loads(line))
        if not reader.actions:
            raise ValueError
        return reader.commit(version)
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError):
        # Nothing of the content: it may quote values.
        raise damaged(name) from None


def damaged(name: str) -> UnsupportedChange:
    """The log file `name` does not hold what a commit holds."""
    message = f"the commit {name} of the lake table's log is empty or damaged"
    return UnsupportedChange(message, hint="restore the file, or remove the table's folder and resync the table")


class _Reader:
    def __init__(self) -> None:
        self.actions = 0
        self._info: dict[str, Any] = {}
        self._markers: dict[str, int] = {}
        self._changes = self._moves = False
        self._columns: Any = None
        self._files: list[tuple[str, int]] = []
        self._removed: set[str] = set()
        self._tracked: dict[str, Mapping[str, int]] = {}

    def take(self, action: dict[str, Any]) -> None:
        for kind, value in action.items():
            self.actions += 1
            if kind == "commitInfo":
                self._info = dict(value)
            elif kind == "txn":
                self._markers[str(value["appId"])] = int(value["version"])
            elif kind == "metaData":
                self._columns = _shape(json.loads(value["schemaString"]))
            elif kind in ("add", "remove", "cdc"):
                self._file(kind, value)

    def _file(self, kind: str, value: dict[str, Any]) -> None:
        if kind == "cdc" or value.get("dataChange", True):
            self._changes = True
        else:
            self._moves = True
        path = unquote(str(value["path"]))
        if kind == "remove":
            self._removed.add(path)
            return
        if stated := {name: int(value[name]) for name in _TRACKED if value.get(name) is not None}:
            self._tracked[str(value["path"])] = stated
        self._files.append((path, int(value.get("size", -1))))
        vector = vector_file(value.get("deletionVector") or {})
        if vector:
            self._files.append((vector, -1))

    def commit(self, version: int) -> Commit:
        info = self._info
        return Commit(
            version,
            operation=str(info.get("operation", "")),
            at_ms=int(info.get("timestamp", 0)),
            engine=str(info.get("engineInfo", "")),
            user=str(info.get("userName") or info.get("userId") or ""),
            tag=_tagged(info.get("userMetadata")),
            markers=self._markers,
            changes=self._changes,
            moves=self._moves,
            columns=self._columns,
            files=tuple(self._files),
            removed=frozenset(self._removed),
            metrics=_numbers(info.get("operationMetrics")),
            tracked=self._tracked,
        )


def vector_file(descriptor: Mapping[str, Any]) -> str:
    """The file of a deletion vector, empty when it has none. (Delta protocol: Deletion Vector
    Descriptor Schema.)
    """
    kind, place = descriptor.get("storageType"), str(descriptor.get("pathOrInlineDv", ""))
    if kind == "p":
        return unquote(place)
    if kind != "u":
        return ""
    prefix, encoded = place[:-_UUID_CHARACTERS], place[-_UUID_CHARACTERS:]
    name = f"deletion_vector_{uuid.UUID(bytes=base64.b85decode(encoded.translate(str.maketrans(Z85, B85))))}.bin"
    return f"{prefix}/{name}" if prefix else name


def is_another(found: str, stated: object) -> bool:
    """Whether the manifest's entry is another one than that whose hash was `stated`. `found` is its hash (empty: not
    known, ABSENT: there is none).
    """
    return found == ABSENT or bool(found and stated and isinstance(stated, str) and found != stated)


def of_another_entry(commit: Commit, marker: int, sha256: str) -> str:
    """Why `commit` was not made from manifest entry `marker`, whose bytes have the hash `sha256` (empty: not known,
    ABSENT: there is none). Empty when it was, or does not say.
    """
    if not is_another(sha256, commit.tag.get(ENTRY)):
        return ""
    another = f"another manifest entry {marker} than the manifest"
    absent = f"manifest entry {marker}, which the manifest does not have"
    return f"the lake table has {absent if sha256 == ABSENT else another}: an older copy of the spool was restored"


def of_another_shape(commit: Commit, version: int, sha256: str) -> str:
    """The same of a `commit` that led to the columns of schema version `version`, which have the hash `sha256` in the
    manifest.
    """
    if not is_another(sha256, commit.tag.get(ENTRY)):
        return ""
    whose = "which the manifest does not have" if sha256 == ABSENT else "which has others in the manifest"
    return f"the lake table has columns of schema version {version}, {whose}: an older copy of the spool was restored"


def refuse_late(commit: Commit, app_id: str, *, read: Callable[[int], Commit]) -> None:
    """`commit` left a marker of `app_id`; `read` reads the commit of a version. A statement is based on whatever it
    finds, however long ago its window was decided. Raises UnsupportedChange when it was not decided on top of the
    marker before it.
    """
    after = commit.tag.get(AFTER)
    for number in range(after + 1, commit.version) if isinstance(after, int) else ():
        unknown = read(number).markers.get(app_id)
        if unknown is not None:
            raise UnsupportedChange(
                f"an applier that was replaced was at work: {commit.markers[app_id]} was committed to the lake table "
                f"without knowledge of {unknown}, which may hold the same changes: rows may be there twice",
                hint="resync the table",
            )


def newest_own(newest: int, *, prefix: str, read: Callable[[int], Commit | None]) -> tuple[int | None, bool]:
    """The last commit up to the version `newest` by an applier whose names begin with `prefix` that was based on no
    change of somebody else; None where those that `read` gives do not tell, None for one that is gone. And whether
    somebody else changed rows or columns after it, as far as they tell.
    """
    number, changed = newest, False
    while number >= 0 and (commit := read(number)) is not None:
        if _begins(commit, prefix):
            after = commit.tag.get(AFTER)
            based_on = after if isinstance(after, int) and -1 <= after < number else number - 1
            between = [read(one) for one in range(based_on + 1, number)]
            if None in between:
                break
            if not any(one is not None and _alters(one, prefix) for one in between):
                return number, changed
            number, changed = based_on, True
        else:
            number, changed = number - 1, changed or _alters(commit, prefix)
    return None, changed


def _begins(commit: Commit, prefix: str) -> bool:
    names = (*commit.markers, str(commit.tag.get(TAG, "")))
    return any(name.startswith(prefix) for name in names)


def _alters(commit: Commit, prefix: str) -> bool:
    return not _begins(commit, prefix) and (changes_data(commit) or commit.columns is not None)


def changes_data(commit: Commit) -> bool:
    """Whether a commit that is not ours leaves other rows than it found, or may do so."""
    return commit.changes or commit.operation == "RESTORE" or (commit.moves and commit.operation not in _REARRANGING)


def shape(schema: str) -> Any:
    """Delta's JSON of a schema as far as it decides about rows: two that differ in comments only
    are equal.
    """
    return _shape(json.loads(schema))


def _shape(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: _shape(value) for name, value in node.items() if name != "comment"}
    return [_shape(item) for item in node] if isinstance(node, list) else node


def _tagged(text: Any) -> dict[str, Any]:
    """Other people's user metadata may be anything."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError):
        return {}
    return value if isinstance(value, dict) else {}


def _numbers(metrics: Any) -> dict[str, int]:
    """Other people's metrics may be anything."""
    found = metrics.items() if isinstance(metrics, dict) else ()
    return {name: int(value) for name, value in found if isinstance(value, str) and value.isdecimal()}


def _short(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SHOWN])
