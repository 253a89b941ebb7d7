"""`tables add` and `tables remove`: tables join and leave a running pipeline; the others go on."""

import os
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import click

from sluice.cli import findings_view, policies, table_names, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.table_names import Name
from sluice.contract.control import ADD, REMOVE
from sluice.errors import PreflightFailed, UsageError
from sluice.printable import HIDDEN, one_line, sql

if TYPE_CHECKING:
    from sluice.operate.membership import Membership, Proposal

_apply = click.option(
    "--apply",
    "applied",
    is_flag=True,
    help="Run the statement as the role of SLUICE_OPERATOR_DSN. [default: the role of source.dsn]",
)
_names = click.argument("names", nargs=-1, required=True, metavar="TABLE...", shell_complete=table_names.completed)


@click.command()
@_names
@_apply
@common
def add(invocation: Invocation, names: tuple[str, ...], applied: bool) -> None:  # noqa: FBT001 - a command's parameter
    """Add tables to the pipeline, named as schema.table, and read their rows in a snapshot.

    Without --apply, the command only prints the SQL that adds them, for the owner of the
    publication, and changes nothing. With --apply it runs this SQL as the role of the connection
    string in SLUICE_OPERATOR_DSN, or of source.dsn if that variable is not set. The running ingest
    then adds the table within seconds. A table that was removed before begins a new generation: its
    lake table is replaced when the snapshot is complete.

    The command refuses a table that Sluice could not carry, or whose updates the source would
    refuse once the table is published, and shows the findings of `sluice check`. It also refuses a
    table that `source.tables` leaves out: add the table there first. The running processes read the
    edited file automatically.

    \b
    Examples:
      sluice tables add public.returns
      SLUICE_OPERATOR_DSN=postgresql://owner@db/shop sluice tables add --apply public.returns
    """

    def settled(proposal: "Proposal") -> None:
        if proposal.refusals:
            console = invocation.console()
            findings_view.show(console, findings_view.ordered(proposal.findings), ())
            raise PreflightFailed("nothing was added", hint="the findings above say what to do first")
        if proposal.settings:
            raise UsageError("source.tables leaves tables out", hint="; ".join(proposal.settings))

    _propose(
        invocation,
        names,
        ADD,
        applied=applied,
        known=lambda membership, _: membership.may_join,
        plan=lambda membership, tables: membership.add(tables),
        settled=settled,
        said="will be followed",
    )


@click.command()
@_names
@_apply
@common
def remove(invocation: Invocation, names: tuple[str, ...], applied: bool) -> None:  # noqa: FBT001 - a command's parameter
    """Remove tables from the pipeline, named as schema.table or by patterns as in source.tables.
    Their lake tables stay as they are.

    Without --apply, the command only prints the SQL that removes them, for the owner of the
    publication, and changes nothing. With --apply it runs this SQL as the role of the connection
    string in SLUICE_OPERATOR_DSN, or of source.dsn if that variable is not set. The running ingest
    then removes the table within seconds. Its state becomes `detached`, the source no longer sends
    its changes, and no WAL is kept for it.

    If a table is published by FOR ALL TABLES, with its schema or with a partitioned table above it,
    `source.tables` must leave the table out instead. The command prints the pattern to add.

    \b
    Examples:
      sluice tables remove public.logs
      SLUICE_OPERATOR_DSN=postgresql://owner@db/shop sluice tables remove --apply public.logs
    """

    def settled(proposal: "Proposal") -> None:
        if proposal.settings:
            raise UsageError("no single statement removes all of these tables", hint="; ".join(proposal.settings))

    _propose(
        invocation,
        names,
        REMOVE,
        applied=applied,
        known=lambda membership, followed: membership.may_leave | followed,
        plan=lambda membership, tables: membership.remove(tables),
        settled=settled,
        said="will not be followed any more; its lake table stays",
    )


def _propose(
    invocation: Invocation,
    names: tuple[str, ...],
    action: str,
    *,
    applied: bool,
    known: "Callable[[Membership, set[Name]], set[Name]]",
    plan: "Callable[[Membership, list[Name]], Proposal]",
    settled: "Callable[[Proposal], None]",
    said: str,
) -> None:
    """`settled` raises unless the statement of the proposal does all of it."""
    wiring.require("psycopg", "obstore")
    settings = invocation.settings().settings
    from sluice.manifest.reader import load_state
    from sluice.operate.membership import Membership, carry_out
    from sluice.source.sessions import known as known_source
    from sluice.source.sessions import open_query

    store = wiring.open_spool(settings)
    followed = set(table_names.in_manifest(store))
    opened = load_state(store).opened
    source = known_source(wiring.source_options(settings), opened)
    with closing(open_query(source)) as connection:
        membership = Membership(
            connection,
            publication=source.publication,
            patterns=settings.source.tables or (),
            policies=policies.policies(settings),
        )
        possible = known(membership, followed)

        def one(name: str) -> table_names.Name:
            membership.require(name, possible)
            return table_names.named(name, possible, what="a table of this database")

        tables = table_names.chosen(names, one, possible)
        proposal = plan(membership, tables)
        settled(proposal)
        for note in proposal.notes:
            click.echo(one_line(note), err=True)
        if proposal.statement and not applied:
            click.echo(f"{sql(proposal.statement) or HIDDEN};")
            click.echo("nothing was changed: run this as the owner of the publication, or use --apply", err=True)
            return
        dsn = os.environ.get("SLUICE_OPERATOR_DSN", "")
        carry_out(proposal, known_source(wiring.operator_options(settings, dsn=dsn), opened), connection)
    table_names.request_all(settings, store, action, tables, said)
