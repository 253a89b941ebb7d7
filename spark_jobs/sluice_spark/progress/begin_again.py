"""Lake tables that an operator wants made again from the spool, before the applier looks at them.

Owns the order: first the spool is found to have everything, then the log of the lake table goes, which is all that
makes it a table. From then on it is one that has no snapshot yet. A kill in between leaves a table that is stale by
name, and the same command makes it again. Its data files are removed by VACUUM.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog

from sluice.contract.applied import AppliedLog
from sluice.errors import UsageError
from sluice.manifest import rebuilding
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore

_log = structlog.get_logger("sluice.apply")


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
