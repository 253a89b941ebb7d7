"""What a new pipeline needs at the source, created where it is missing: a publication, then a slot.

Invariant: the slot is never older than its publication, because such a slot is of no use. Nothing
is dropped or altered.
"""

import structlog

from sluice import faults
from sluice.lsn import show
from sluice.source.catalog import Catalog
from sluice.source.publication import ensure_publication
from sluice.source.sessions import Connection, SourceOptions
from sluice.source.slot import can_fail_over, ensure_slot
from sluice.source.slot_facts import slot_facts
from sluice.source.snapshot_export import Waiting
from sluice.tables.selection import matches, named_alone, naming


def set_up(
    options: SourceOptions,
    connection: Connection,
    *,
    tables: tuple[str, ...],
    two_phase: bool,
    waiting: Waiting | None = None,
) -> None:
    """Creates publication and slot, each only if it is missing. `tables` are the patterns that the
    new publication is made from, and that an existing one must have the tables of which they name one by
    one; `waiting` hears what the slot waits for. Raises SourceError.
    """
    names = Catalog(connection).table_names()
    chosen = [(schema, table) for schema, table in names if matches(tables, schema, table)] if naming(tables) else None
    required = [name for name in chosen or () if named_alone(tables, *name)]
    published = ensure_publication(connection, options.publication, chosen, required=required)
    logger = structlog.get_logger("setup")
    if published.created:
        logger.info("publication created", publication=options.publication, tables=len(chosen or ()))
    faults.point("setup.published")
    if slot_facts(connection, options.slot) is None:
        failover = can_fail_over(connection, two_phase=two_phase)
        slot = ensure_slot(options, two_phase=two_phase, failover=failover, waiting=waiting)
        logger.info("slot created", slot=slot.name, confirmed_flush_lsn=show(slot.confirmed_flush_lsn or 0))
    faults.point("setup.slot")
