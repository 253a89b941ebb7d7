"""Closes the gap of a table: compares it with the source, reads what differs, and has ingest publish it.

Invariant: the rows are read in the very snapshot that the comparison was made in, so that together with
the table in front of the gap they are the source as of one position. They lie below `keys.REPAIRS` until
ingest has them, and are removed when it is not asked. Those of a process that died are collected by ingest.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from sluice import faults
from sluice.contract import keys
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.control import MOST_KEYS, REPAIR, REPAIR_READ_SECONDS, Request
from sluice.contract.entries import Repair, Segment
from sluice.contract.schema import TableSchema
from sluice.contract.verified import NOT_COMPARED
from sluice.errors import SourceError, VerificationFailed
from sluice.ingest.snapshot.repair_rows import Key, read_again
from sluice.manifest.values import TableState
from sluice.operate.compare.comparing import Comparing, Comparison
from sluice.operate.compare.repairing import await_done, keys_wanted
from sluice.printable import counted
from sluice.source.sessions import KnownSource
from sluice.source.snapshot_export import SnapshotHolder
from sluice.store.base import ObjectStore
from sluice.store.calls import create_named
from sluice.store.doorbell import Doorbell


def close_gap(
    options: KnownSource, store: ObjectStore, comparing: Comparing, state: TableState, *, seconds: float
) -> Comparison:
    """Has the gap of `state` closed; the verdict is about the rows in front of it, of which those that differed
    were read again. One that is not compared says why, and nothing was done.

    Raises VerificationFailed when ingest refuses, or too many rows differ, UsageError where a row that differs
    has no key, ApplyError when ingest does not take them within `seconds`, SourceError, StoreError.
    """
    gap = state.gap
    assert gap is not None
    for verdict, facts, holder in comparing.gap(state):
        if verdict.outcome == NOT_COMPARED or facts is None:
            return verdict
        schema = state.schemas[gap.schema_version]
        wanted = keys_wanted(verdict, len(schema.key_columns)) if verdict.difference else []
        began = time.time_ns()
        token = keys.repair_token(began, uuid.uuid4().hex)
        segments: list[Segment] = []
        try:
            for number, at in enumerate(range(0, len(wanted), MOST_KEYS)):
                some = wanted[at : at + MOST_KEYS]
                key = keys.repair_rows(token, number)
                segments.append(_stored(options, store, schema, facts, holder, some, behind=at, key=key))
            _require_young(verdict.name, (time.time_ns() - began) / 1e9)
        except BaseException:
            for segment in segments:
                store.delete(segment.key)
            raise
        faults.point("gap.rows.stored")
        repair = Repair(
            state.table_id, state.generation, schema.version, verdict.lsn, verdict.lsn, tuple(segments), gap.seq
        )
        place = options.place.system_identifier, str(options.place.timeline)
        _ask(store, verdict, repair, place, token=token, seconds=seconds)
        return replace(verdict, repaired=len(wanted))
    raise AssertionError("a comparison ended without a verdict")


def _require_young(name: str, seconds: float) -> None:
    """Older rows are collected as those of a process that died."""
    if seconds > REPAIR_READ_SECONDS:
        raise VerificationFailed(
            f"the rows of {name} that differ could not be read within {REPAIR_READ_SECONDS / 3600:g} hours",
            hint="`sluice resync` takes a new snapshot",
        )


def _stored(
    options: KnownSource,
    store: ObjectStore,
    schema: TableSchema,
    facts: TableFacts,
    holder: SnapshotHolder,
    wanted: Sequence[Key],
    *,
    behind: int,
    key: str,
) -> Segment:
    file = read_again(options, schema, facts, holder, wanted, behind=behind)
    if file.stats.rows > len(wanted):  # fewer, where two spellings mean one key
        raise SourceError(
            f"{counted(len(wanted), 'key')} of {schema.qualified_name} gave {counted(file.stats.rows, 'row')}"
        )
    store.put(key, file.data)
    return file.segment(key, schema)


def _ask(
    store: ObjectStore, verdict: Comparison, repair: Repair, place: tuple[str, str], *, token: str, seconds: float
) -> None:
    at = datetime.now(UTC).isoformat(timespec="seconds")
    key = keys.control_request(token)
    request = Request(REPAIR, verdict.schema_name, verdict.table_name, at, (place,), repair)
    create_named(store, key, request.encode())
    Doorbell(store, "ingest").ring()
    await_done(store, [key], verdict, seconds=seconds)
