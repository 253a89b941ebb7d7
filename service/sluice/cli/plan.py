"""`plan`: what the present difference between catalog and manifest would do to the lake."""

import os
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from sluice.cli import deadline, exits, output, policies, table_names, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.table_names import Name
from sluice.cli.texts import utf8
from sluice.cli.times import Seconds
from sluice.errors import StoreUnavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sluice.settings import Settings
    from sluice.tables.preview import Preview

_CODES = {"nothing": exits.OK, "followed": exits.OK, "snapshot": exits.PLAN_SNAPSHOT, "stop": exits.PLAN_STOP}


@dataclass(frozen=True, slots=True)
class Planned:
    """`rows` and `bytes` are what a snapshot would read, as the server estimates it; None of a snapshot where
    it has not counted yet.
    """

    name: Name
    preview: "Preview"
    rows: int | None = None
    bytes: int | None = None

    @property
    def table(self) -> str:
        return ".".join(self.name)

    def to_json(self) -> dict[str, Any]:
        found = self.preview
        return {
            "table": self.table,
            "effect": found.effect,
            "cause": found.cause or None,
            "why": found.why,
            "rows": self.rows,
            "bytes": self.bytes,
        }


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...", shell_complete=table_names.completed)
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@click.option(
    "--sql",
    "statement",
    metavar="STATEMENT",
    callback=utf8,
    help="Show what this statement would do: run it and roll it back, as the role of SLUICE_OPERATOR_DSN. "
    "[default: the role of source.dsn]",
)
@click.option(
    "--seconds",
    type=Seconds(0.1, 60),
    metavar="SECONDS",
    default=2.0,
    show_default=True,
    help="With --sql: how long the statement may run.",
)
@common
def plan(
    invocation: Invocation,
    tables: tuple[str, ...],
    json_wanted: bool,  # noqa: FBT001 - a command's parameter
    statement: str | None,
    seconds: float,
) -> int:
    """Show what would happen to each lake table if ingest read the catalog now.

    Each changed table is followed without a new snapshot, read again from a new snapshot, or
    stopped. `plan` compares the catalog of the source with the manifest, by the same rules and
    policies as ingest. `plan` only reads, and takes no lock on a table. A running ingest follows
    most changes within seconds: to see the plan first, stop ingest before you change tables. `plan`
    does not take into account what is still in the stream and not yet in the manifest.

    It also compares the configured targets with the lake tables that the applier reported last, and
    shows which of them would be added, continued, left behind or stale at its next start. For a
    lake table that stays, it shows what changes of the settings track, soft_delete_retention,
    properties, cluster_by and partition_by would do, and which of these changes wait for a new
    snapshot. It does not look at the lake tables themselves.

    With --sql it shows what one ALTER or DROP statement would do to the tables of the publication,
    and to no other table. The statement runs at the source in a transaction that is then rolled
    back. The statement waits at most one second for its locks. It holds them while it runs, for at
    most --seconds, and then while `plan` reads the catalog with queries of at most ten seconds
    each. Nobody else can read or write the table meanwhile. A statement that takes longer is
    canceled, but puts load on the source until then. Effects of functions outside the transaction
    (a sequence, another server) are not undone.

    The exit code is 0 if nothing changed or every change is followed, 13 if a new or changed table
    would be read, and 14 if a table would stop.

    \b
    Examples:
      sluice plan
      sluice plan public.orders --json
      sluice plan --sql 'ALTER TABLE orders ALTER COLUMN id TYPE bigint'
    """
    wiring.require("psycopg", "obstore", "numpy")
    try:
        planned = _chosen(look(invocation.settings().settings, statement=statement, seconds=seconds), tables)
    except StoreUnavailable as error:
        unknown = f"what the lake tables were made of is not known, so neither is what would happen to them: {error}"
        raise StoreUnavailable(unknown, hint=error.hint) from None
    if json_wanted:
        output.as_json({"schema_version": 1, "tables": [one.to_json() for one in planned]})
    else:
        shown = (
            planned if tables or statement is not None else [one for one in planned if one.preview.effect != "nothing"]
        )
        console = invocation.console()
        if shown:
            console.print(_table(shown))
        more = f"tables that would not change: {len(planned) - len(shown):,}"
        click.echo("all other tables would stay as they are" if statement is not None else more, err=True)
    return exit_code(planned)


def exit_code(planned: list[Planned]) -> int:
    return max((_CODES[one.preview.effect] for one in planned), default=exits.OK)


def look(
    settings: "Settings", *, statement: str | None = None, seconds: float = 2.0, catalog_alone: bool = False
) -> list[Planned]:
    """What would become of each table, in the order of names; with a `statement` of those that it changes. With
    `catalog_alone` what the configuration would do to lake tables is left out.
    Raises UsageError, SourceError, StoreError, ManifestCorrupt; SlotLost and SourceMoved when the source is
    not the manifest's.
    """
    from sluice.manifest.newest_record import newest_log
    from sluice.manifest.reader import load_state, objects_pruned_through
    from sluice.operate import settings_preview
    from sluice.operate.dry_run import require_change, rolled_back
    from sluice.operate.target_changes import target_changes
    from sluice.source.catalog import Catalog
    from sluice.source.sessions import known, open_query
    from sluice.tables import messages as messagetable
    from sluice.tables.events import Configured
    from sluice.tables.preview import Previews
    from sluice.tables.selection import matches, naming

    if statement is not None:
        require_change(statement)
    dsn = os.environ.get("SLUICE_OPERATOR_DSN", "") if statement is not None else ""
    store = deadline.PromptStore(wiring.open_spool(settings))
    manifest, log, pruned_seq = load_state(store), newest_log(store).read(), objects_pruned_through(store)
    states = {int(state.table_id): state for state in manifest.tables.values()}
    states.pop(int(messagetable.TABLE_ID), None)
    configured, patterns = policies.policies(settings), settings.source.tables or ()
    source = known(wiring.operator_options(settings, dsn=dsn), manifest.opened)
    with closing(open_query(source)) as connection:
        catalog, publication = Catalog(connection), settings.source.publication
        published = {facts.oid: facts for facts in catalog.published_tables(publication)}
        if not published and not manifest.seq and catalog.publication(publication) is None:
            # The first run creates it for these.
            first = [name for name in catalog.table_names() if naming(patterns) and matches(patterns, *name)]
            published = {facts.oid: facts for facts in catalog.tables_named(first)}
        sizes = catalog.sizes(tuple(published))
        oids = states.keys() | published.keys()
        if statement is not None:
            now = published
            with rolled_back(connection, statement, published=list(now), seconds=seconds):
                published = {facts.oid: facts for facts in catalog.published_tables(publication)}
            oids = {oid for oid in now.keys() | published.keys() if now.get(oid) != published.get(oid)}
    planned, previews = [], Previews(published, manifest, Configured(patterns, configured))
    for oid in oids:
        state, facts = states.get(oid), published.get(oid)
        before = (state.schema_name, state.table_name) if state is not None else ("", "")
        name = (facts.schema, facts.name) if facts is not None else before
        preview = previews.of(oid)
        size = sizes.get(oid) if preview.effect == "snapshot" else None
        planned.append(
            Planned(
                name,
                preview,
                rows=facts.estimated_rows if size is not None and facts is not None else None,
                bytes=size,
            )
        )
    if statement is None and not catalog_alone:
        # As ingest and the applier would see them at their next start.
        taken = [facts for facts in published.values() if matches(patterns, facts.schema, facts.name)]
        found = [
            *settings_preview.colliding(taken, policies.layout(settings)),
            *settings_preview.unfit(taken, states, configured, metadata=settings.lake.metadata_columns),
        ]
        if log is not None:
            targets = target_changes(
                manifest, lambda name: policies.targets_of(settings, name), log, pruned_seq=pruned_seq
            )
            found += (((state.schema_name, state.table_name), preview) for state, preview in targets)
        planned += (Planned(name, preview) for name, preview in found)
        carried = [one.table for one in planned]
        unmatched = settings_preview.unmatched(policies.column_rules(settings), carried)
        planned += (Planned(name, preview) for name, preview in unmatched)
    return sorted(planned, key=lambda one: one.table)


def _chosen(planned: list[Planned], names: tuple[str, ...]) -> list[Planned]:
    known = {one.name: one for one in planned}
    wanted = {table_names.named(name, known, what="a table that the publication or the manifest has") for name in names}
    return [one for one in planned if not names or one.name in wanted]


def _table(planned: list[Planned]) -> "RenderableType":
    rows = [
        (one.table, one.preview.effect, _estimate(one, one.rows), _estimate(one, one.bytes), one.preview.why)
        for one in planned
    ]
    return output.table("", ("table", "effect", "rows", "bytes", "why"), rows, right=("rows", "bytes"))


def _estimate(planned: Planned, number: int | None) -> str:
    if planned.preview.effect != "snapshot":
        return "-"
    return "unknown" if number is None else f"{number:,}"
