"""The applier's ledger over a manifest, without an applier."""

from collections.abc import Mapping
from typing import Any

from sluice.contract.applied import AppliedLog
from sluice.contract.schema import TableSchema
from sluice.manifest.reader import load_state, read_entries
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore
from sluice_spark.applied_window import Applied
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.restart import restore
from sluice_spark.progress.table_progress import Work
from sluice_spark.read.window import BEFORE
from tests.spark.changes import Manifest

NOWHERE = ExaminedVersion()
"""Where a table stands that is not in the lake."""


def begin(manifest: Manifest, *schemas: TableSchema) -> int:
    """Each is published with a snapshot without rows. Returns the last entry."""
    for schema in schemas:
        manifest.table(schema)
        manifest.snapshot([], schema)
    return manifest.seq


def ledger_of(
    manifest: Manifest | ObjectStore | PipelineState,
    places: Mapping[str, ExaminedVersion] | ExaminedVersion | None = None,
    *,
    log: AppliedLog | None = None,
    **options: Any,
) -> Ledger:
    """Of all that is in the manifest now. Lake tables stand where `places` says, of all or by their keys; those of
    which it says nothing stand at their snapshots.
    """
    state = manifest if isinstance(manifest, PipelineState) else load_state(_store(manifest))
    ledger = Ledger(ApplyOptions("shop", "memory://s", "memory://l", **options), state)
    tables = ledger.state.tables
    stand = dict.fromkeys(tables, places) if isinstance(places, ExaminedVersion) else places or {}
    at = {key: stand.get(key) or ExaminedVersion(0, one.generation_seq) for key, one in tables.items()}
    ledger.begin({key: restore(one, log, place=at[key]) for key, one in tables.items()})
    return ledger


def _store(manifest: Manifest | ObjectStore) -> ObjectStore:
    return manifest.store if isinstance(manifest, Manifest) else manifest


def read(ledger: Ledger, manifest: Manifest | ObjectStore, *, since: float = BEFORE) -> None:
    for entry, sha256 in read_entries(_store(manifest), after_seq=ledger.read_seq):
        ledger.take_in(entry, sha256, since=since)
    ledger.trim()


def commit(ledger: Ledger, work: Work, *, took_seconds: float = 0.0, **said: Any) -> None:
    """The window of `work` is committed, as the next version of its lake table."""
    last = work.window.last_seq
    place = ExaminedVersion(work.progress.place.version + 1, last, seen=True)
    ledger.busy.discard(work.state.path)
    ledger.applied(work, Applied(place, last, 1, **said), seconds=took_seconds)
