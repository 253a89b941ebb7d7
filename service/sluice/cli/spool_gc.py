"""`spool gc`: what nothing needs any more, shown, and deleted at once when a person says so."""

from typing import TYPE_CHECKING, Any

import click

from sluice.cli import output, wiring
from sluice.cli.invocation import Invocation, common
from sluice.lsn import show
from sluice.printable import counted, one_line
from sluice.settings.values import parse_retention

if TYPE_CHECKING:
    from sluice.manifest.pruning import Plan

_SHOWN_HOLDS = 5


def _age(context: click.Context, option: click.Parameter, text: str | None) -> float | None:  # noqa: ARG001 - the form of a callback
    try:
        return None if text is None else float(parse_retention(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command("gc")
@click.option(
    "--keep",
    metavar="AGE",
    callback=_age,
    help="As if spool.retention were this: until_applied, forever or a duration.",
)
@click.option("--yes", is_flag=True, help="Delete; without it nothing is changed.")
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def collect(invocation: Invocation, keep: float | None, yes: bool, json_wanted: bool) -> None:  # noqa: FBT001 - a command's parameters
    """Show what the retention lets go, and what keeps the rest; with --yes: delete it now.

    The applier does this by itself while it runs, for spool.retention. Here you see it before, see
    what another retention would delete, and need not wait. Works while ingest and applier run. A
    table that is behind, being snapshotted, stale or unknown to the applier keeps what it needs and
    is named. What was deleted cannot be applied again: a lake that is lost afterwards is read from
    the source again.

    \b
    Examples:
      sluice spool gc
      sluice spool gc --keep until_applied
      sluice spool gc --keep 36h --yes
    """
    wiring.require("obstore")
    from sluice.manifest import pruning

    settings = invocation.settings().settings
    store = wiring.open_spool(settings)
    plan = pruning.plan(store, keep_seconds=settings.spool.retention if keep is None else keep)
    if yes:
        pruning.carry_out(store, plan)
    if json_wanted:
        output.as_json({"schema_version": 1, "deleted": yes, **_facts(plan)})
    else:
        _tell(plan, done=yes)


def _facts(plan: "Plan") -> dict[str, Any]:
    return {
        "entries": plan.entries,
        "through_entry": plan.through_seq,
        "through_lsn": show(plan.through_lsn),
        "objects": len(plan.objects),
        "bytes": plan.bytes,
        "leftovers": len(plan.leftovers),
        "checkpoints": len(plan.checkpoints),
        "held_by": [{"what": hold.what, "why": hold.why, "after_entry": hold.seq} for hold in plan.holds],
    }


def _tell(plan: "Plan", *, done: bool) -> None:
    pruned = (
        f"nothing needs the objects of those through {plan.through_seq} ({show(plan.through_lsn)})"
        if plan.through_seq
        else "each is still needed"
    )
    click.echo(f"of {counted(plan.entries, 'entry', 'entries')}, {pruned}")
    for hold in plan.holds[:_SHOWN_HOLDS]:
        click.echo(one_line(f"  {hold}"))
    if len(plan.holds) > _SHOWN_HOLDS:
        click.echo(f"  and {len(plan.holds) - _SHOWN_HOLDS} more keep a part of the rest")
    what = (
        f"{counted(len(plan.objects), 'object')} ({output.amount(plan.bytes)}), "
        f"{counted(len(plan.leftovers), 'leftover')}, {counted(len(plan.checkpoints), 'checkpoint')}"
    )
    click.echo(f"deleted: {what}" if done else f"to delete: {what}")
    if not done:
        click.echo("nothing was changed; --yes deletes", err=True)
