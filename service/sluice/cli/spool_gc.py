"""`spool gc`: what nothing needs any more, shown, and deleted at once when a person says so."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from sluice.cli import output, wiring
from sluice.cli.invocation import Invocation, common
from sluice.errors import UsageError
from sluice.lsn import show
from sluice.printable import counted, one_line
from sluice.settings.values import parse_retention

if TYPE_CHECKING:
    from sluice.manifest.pruning import Plan

_SHOWN_HOLDS = 5
_SAID = {
    "keeps": "can make it now and afterwards",
    "loses": "can make it now but not afterwards",
    "lost": "cannot make it: the spool no longer has all of it",
}


def _age(context: click.Context, option: click.Parameter, text: str | None) -> float | None:  # noqa: ARG001 - the form of a callback
    try:
        return None if text is None else float(parse_retention(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command("gc")
@click.option(
    "--retention",
    metavar="AGE",
    callback=_age,
    help="Use this instead of spool.retention: until_applied, forever or a duration.",
)
@click.option(
    "--plan",
    "effects_wanted",
    is_flag=True,
    help="Show for each table whether `sluice rebuild` could still make it; change nothing.",
)
@click.option("--yes", is_flag=True, help="Delete. Without this option nothing is changed.")
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def collect(
    invocation: Invocation,
    retention: float | None,
    effects_wanted: bool,  # noqa: FBT001 - a command's parameter
    yes: bool,  # noqa: FBT001 - a command's parameter
    json_wanted: bool,  # noqa: FBT001 - a command's parameter
) -> None:
    """Show what pruning would delete and why it keeps the rest; with --yes, delete now.

    The running applier prunes automatically, according to spool.retention. This command shows what
    pruning would delete, with this or another retention; with --yes it deletes that at once. It
    works while ingest and the applier run. A table that is behind, in its snapshot, stale or
    unknown to the applier keeps what it needs, and the output names it. What was deleted cannot be
    applied again: if the lake is lost afterwards, its tables must be read from the source again.
    Run --plan before you change spool.retention: it names the tables that `sluice rebuild` could no
    longer make, and says for how long it could still make the others.

    \b
    Examples:
      sluice spool gc
      sluice spool gc --retention until_applied
      sluice spool gc --plan --retention 2d
      sluice spool gc --retention 36h --yes
    """
    if yes and effects_wanted:
        raise UsageError("--plan and --yes exclude each other", hint="--plan changes nothing, and --yes deletes")
    wiring.require("obstore")
    from sluice.manifest import pruning, retention_effects

    settings = invocation.settings().settings
    store = wiring.open_spool(settings)
    keep_seconds = settings.spool.retention if retention is None else retention
    plan = pruning.plan(store, keep_seconds=keep_seconds, consumer_seconds=settings.spool.consumer_hold)
    effects = retention_effects.effects(store, plan, keep_seconds=keep_seconds) if effects_wanted else []
    if yes:
        pruning.carry_out(store, plan)
    if json_wanted:
        tables = {"tables": [asdict(effect) for effect in effects]} if effects_wanted else {}
        output.as_json({"schema_version": 1, "deleted": yes, **_facts(plan), **tables})
        return
    _tell(plan, done=yes)
    if effects:
        rows = [(effect.table, _SAID[effect.effect], effect.until or "") for effect in effects]
        invocation.console().print(output.table("", ("table", "sluice rebuild", "at least until"), rows))
    if effects_wanted and plan.through_seq:
        click.echo(f"sluice blame shows no change of a row through {show(plan.through_lsn)} any more")


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
        f"the objects of entries through {plan.through_seq} ({show(plan.through_lsn)}) are no longer needed"
        if plan.through_seq
        else "the objects of all entries are still needed"
    )
    click.echo(f"{counted(plan.entries, 'entry', 'entries')}: {pruned}")
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
