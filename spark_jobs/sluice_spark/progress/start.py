"""What the applier starts with: every table as it stands, and those that an operator wants made again from the spool
as tables that have no snapshot yet.

Owns the order for the latter: first the spool is found to have everything, then the log of the lake table goes, which
is all that makes it a table. From then on it is one that has no snapshot yet. A kill in between leaves a table that
is stale by name, and the same command makes it again. Its data files are removed by VACUUM.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog
from pyspark.sql import SparkSession

from sluice.contract.applied import AppliedLog
from sluice.errors import UsageError
from sluice.manifest import rebuilding
from sluice.manifest.reader import load_state, pruned_through
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore
from sluice_spark.lake.opening import Lake
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.restart import find_tables
from sluice_spark.telemetry import ApplyTelemetry

_log = structlog.get_logger("sluice.apply")


def open_ledger(
    options: ApplyOptions,
    store: ObjectStore,
    log: AppliedLog | None,
    *,
    lake: Lake,
    session: SparkSession,
    telemetry: ApplyTelemetry,
) -> Ledger:
    """Every table as it stands now, `log` being what was last reported. Raises SparkGone, ManifestCorrupt,
    FormatTooNew, StoreError; UsageError when a table cannot be made again as the options ask.
    """
    # In this order: what is pruned after the state was read is not needed by it.
    ledger, floor_seq = Ledger(options, load_state(store)), pruned_through(store)
    if options.rebuild:
        log = begin_again(
            store,
            lake.files,
            ledger.state,
            log,
            wanted=options.rebuild,
            require_owner=lake.require_owner,
        )
    found = find_tables(
        options, ledger.state.tables, log, lake=lake, session=session, telemetry=telemetry, floor_seq=floor_seq
    )
    ledger.begin(found, floor_seq=floor_seq)
    return ledger


def begin_again(
    store: ObjectStore,
    files: ObjectStore,
    state: PipelineState,
    log: AppliedLog | None,
    *,
    wanted: tuple[str, ...],
    require_owner: Callable[[], None],
) -> AppliedLog | None:
    """Removes the lake tables `wanted` (schema.table), which lie in `files`, and returns the report without them.
    Raises UsageError when one of them cannot be made from the spool, and nothing was removed then; what `require_owner`
    raises, StoreError.
    """
    named = {f"{table.schema_name}.{table.table_name}": table for table in state.tables.values() if table.is_applied}
    unknown = [name for name in wanted if name not in named]
    if unknown:
        raise UsageError(f"{unknown[0]} is not a table that is applied now", hint="`sluice tables` lists the tables")
    plans = {name: rebuilding.plan(store, state, named[name]) for name in wanted}
    for name, plan in plans.items():
        table = named[name]
        require_owner()
        removed = list(files.list(f"{table.path}/_delta_log/"))
        for key in removed:
            files.delete(key)
        _log.warning(
            "a lake table is made again from the spool",
            table=name,
            from_seq=plan.first_seq,
            segments=plan.segments,
            bytes=plan.bytes,
            removed=len(removed),
        )
    if log is None:
        return None
    ids = {named[name].table_id for name in wanted}
    return replace(log, tables={table_id: row for table_id, row in log.tables.items() if table_id not in ids})
