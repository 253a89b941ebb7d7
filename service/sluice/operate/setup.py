"""What a new pipeline needs at the source: a publication, then a slot. Planned first, so that a
person can read or run it.

Invariant: nothing is created once a manifest exists: then a missing slot is a loss that must be
named, never something to make up for. Must not drop anything, nor alter more than the slot's
two_phase flag. (PostgreSQL: CREATE PUBLICATION; Replication Management Functions.)
"""

from contextlib import closing
from dataclasses import dataclass, replace

from sluice.errors import UsageError
from sluice.ingest.options import IngestOptions
from sluice.operate.slots import in_order
from sluice.quoting import quote_literal
from sluice.source import ddl_signal
from sluice.source.catalog import Catalog
from sluice.source.continuity import can_set_two_phase, prove_continuity, require_same_database
from sluice.source.facts import Place
from sluice.source.publication import create_publication_sql
from sluice.source.sessions import Connection, KnownSource, SourceOptions, open_query
from sluice.source.setup import set_up
from sluice.source.slot import can_fail_over
from sluice.source.slot_facts import slot_facts
from sluice.source.start_replication import set_two_phase
from sluice.store.base import ObjectStore
from sluice.tables.selection import matches, naming


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that must exist. `statement` makes it; empty when it exists."""

    kind: str
    name: str
    statement: str


def prepare(options: IngestOptions, store: ObjectStore, *, dry_run: bool) -> list[Requirement]:
    """The steps of a new pipeline, carried out unless `dry_run`. A pipeline that has a manifest is
    only checked, its slot's two_phase flag made to agree.

    Raises SlotLost when an existing pipeline cannot go on, SourceError and StoreError.
    """
    with closing(open_query(options.source)) as connection:
        slot, state, server = in_order(connection, options.source, store)
        if state.opened is not None:
            change = _two_phase_change(options, connection)
            require_same_database(Place.of(state.opened), Place.of(server))
            if change.statement and not dry_run:
                set_two_phase(
                    KnownSource.of(options.source, server), wanted=options.two_phase, start_lsn=state.through_lsn
                )
                slot = slot_facts(connection, options.source.slot)
            if not (change.statement and dry_run):
                prove_continuity(
                    state.opened,
                    state.through_lsn,
                    server=server,
                    slot=slot,
                    two_phase=options.two_phase,
                )
            return [Requirement("publication", options.source.publication, ""), change]
        steps = _plan(options, connection)
        if not dry_run:
            set_up(options.source, connection, tables=options.tables, two_phase=options.two_phase)
        return steps


def signal_steps(options: SourceOptions, *, create: bool) -> list[Requirement]:
    """What the DDL signal is made of; with `create` it is made. Without statements where it was there. Raises
    SourceError.
    """
    if create:
        with closing(open_query(options)) as connection:
            made = ddl_signal.create(connection)
    return [
        Requirement("DDL signal", ddl_signal.SCHEMA, one if not create or made else "")
        for one in ddl_signal.statements()
    ]


def _two_phase_change(options: IngestOptions, connection: Connection) -> Requirement:
    """What makes the slot of a running pipeline decode prepared transactions as the configuration
    says, where the server can change it.
    """
    slot = slot_facts(connection, options.source.slot)
    step = Requirement("slot", options.source.slot, "")
    if (
        slot is None
        or slot.two_phase == options.two_phase
        or not can_set_two_phase(connection.pgconn.server_version, wanted=options.two_phase)
    ):
        return step
    value = "true" if options.two_phase else "false"
    return replace(step, statement=f"two_phase = {value}, over a replication connection")


def _plan(options: IngestOptions, connection: Connection) -> list[Requirement]:
    catalog = Catalog(connection)
    publication = "" if catalog.publication(options.source.publication) else _publication_sql(options, catalog)
    flags = "false, true" if options.two_phase else "false"
    if can_fail_over(connection, two_phase=options.two_phase):
        flags = f"false, {str(options.two_phase).lower()}, true"
    slot = (
        ""
        if slot_facts(connection, options.source.slot)
        else f"SELECT pg_create_logical_replication_slot({quote_literal(options.source.slot)}, 'pgoutput', {flags})"
    )
    return [
        Requirement("publication", options.source.publication, publication),
        Requirement("slot", options.source.slot, slot),
    ]


def _publication_sql(options: IngestOptions, catalog: Catalog) -> str:
    named = naming(options.tables)
    chosen = [name for name in catalog.table_names() if matches(options.tables, *name)] if named else []
    if not chosen:
        what = (
            f"no table matches {', '.join(options.tables)}"
            if named
            else "source.tables does not say what it should have"
        )
        raise UsageError(
            f"publication {options.source.publication} does not exist, and {what}",
            hint="name the tables in source.tables, as schema.table",
        )
    via_root = any(table.relkind == "p" for table in catalog.tables_named(chosen))
    return create_publication_sql(options.source.publication, chosen, via_root=via_root)
