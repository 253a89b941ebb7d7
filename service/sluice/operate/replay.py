"""Before a replay: where it ends, what it is made of, and the lake that it may write.

Invariant: nothing is written before everything is known to be there, and then only into a lake that is empty or that
this very replay began. Whatever the pipeline owns (its spool, its lake) is no such lake. Asks no database.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sluice.contract import replay
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.replay import Replay
from sluice.errors import ObjectExists, ObjectMissing, UsageError
from sluice.lsn import show
from sluice.manifest import entry_lookup, rebuilding, replaying
from sluice.manifest.reader import identity
from sluice.manifest.rebuilding import Rebuild
from sluice.manifest.replaying import Moment
from sluice.manifest.values import TableState
from sluice.printable import counted
from sluice.store.base import ObjectStore

TargetsOf = Callable[[str], tuple[LakeTarget, ...]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The replay `record`, whose newest transaction was committed at `time_us` (unix microseconds, 0: not known).
    `tables` are made of `parts`, by id; `others` (schema.table) are not made. `begun`: an earlier attempt has begun it.
    """

    record: Replay
    time_us: int
    tables: list[TableState]
    parts: Mapping[str, Rebuild]
    others: tuple[str, ...]
    begun: bool


def plan(
    spool: ObjectStore,
    lake: ObjectStore,
    to: Moment,
    names: Iterable[str],
    *,
    pipeline: str,
    targets_of: TargetsOf,
    metadata_columns: bool,
) -> Plan:
    """What would be made in `lake`. Raises UsageError when it cannot be, ManifestCorrupt, FormatTooNew, StoreError.
    Writes nothing.
    """
    found = replaying.find(spool, to)
    ending, state, tables = replaying.choose(found, names)
    for table in tables:
        if table.gaps and any(target.keeps_changes for target in targets_of(table.source_name)):
            raise UsageError(
                f"changes of {table.source_name} are lost, so that no table can keep every change of it",
                hint="choose another kind for it in the configuration, or other tables",
            )
    record = Replay(
        pipeline,
        identity(spool),
        ending.seq,
        _hash_of(spool, ending.seq),
        ending.lsn,
        metadata_columns,
        {table.source_name: _text(targets_of(table.source_name)) for table in tables},
    )
    begun = _begun(lake, record)
    if begun is not None:
        # The end of the log may have got further entries without a transaction since.
        record = begun
        if begun.sha256 != _hash_of(spool, begun.seq):
            raise UsageError(
                f"the lake holds a replay of another manifest entry {begun.seq} than the spool has: an older copy of "
                "the spool was restored, or the entry was pruned",
                hint="begin again with another address",
            )
    parts = {} if begun is not None else rebuilding.plans(spool, state, tables)
    others = {table.source_name for table in state.tables.values()} - record.tables.keys()
    return Plan(record, found.time_us, tables, parts, tuple(sorted(others)), begun is not None)


def _hash_of(spool: ObjectStore, seq: int) -> str:
    found = entry_lookup.find(spool, seq) if seq else None
    return found.sha256 if found is not None else ""


def begin(lake: ObjectStore, record: Replay) -> None:
    """From now on the lake belongs to this replay. Raises UsageError when another one was faster, StoreError."""
    try:
        lake.create(replay.KEY, record.encode())
    except ObjectExists:
        if _begun(lake, record) is None:
            raise


def _begun(lake: ObjectStore, record: Replay) -> Replay | None:
    """What an earlier attempt at the same replay wrote; None in a lake without anything. Raises UsageError for any
    other lake.
    """
    try:
        found = Replay.decode(lake.get(replay.KEY))
    except ObjectMissing:
        there = next(iter(lake.list("")), None)
        if there is None:
            return None
        raise UsageError(f"the lake is not empty: {there} is there", hint="a replay needs an empty address") from None
    if _what(found) == _what(record):
        return found
    raise UsageError(
        f"the lake holds another replay, of {counted(len(found.tables), 'table')} of {found.pipeline} "
        f"as of {show(found.lsn)}",
        hint="run the same replay again to continue it; another replay needs another address",
    )


def _what(record: Replay) -> tuple[object, ...]:
    return record.pipeline, record.manifest, record.lsn, record.metadata_columns, record.tables


def _text(targets: Iterable[LakeTarget]) -> str:
    return json.dumps([target.encode() for target in targets], sort_keys=True)


def require_apart(lake_uri: str, others: Mapping[str, str]) -> None:
    """Raises UsageError when the lake lies in one of the `others` (addresses by what they are), or around it."""
    own = _place(lake_uri)
    for what, uri in others.items():
        other = _place(uri)
        if own[: len(other)] == other or other[: len(own)] == own:
            raise UsageError(
                f"{lake_uri} is {what}, or is inside it or contains it",
                hint="a replay needs a separate address",
            )


def _place(uri: str) -> tuple[str, ...]:
    parts = urlsplit(uri)
    host, path = parts.netloc, unquote(parts.path)
    if parts.scheme == "file":
        host, path = "", str(Path(path).resolve())  # it may be `localhost`
    return parts.scheme, host, *filter(None, path.split("/"))
