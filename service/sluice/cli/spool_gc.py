"""`spool gc`: what nothing needs any more, shown, and deleted when a person says so."""

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from sluice.cli import output, wiring
from sluice.cli.invocation import Invocation, common
from sluice.lsn import show
from sluice.printable import one_line

if TYPE_CHECKING:
    from sluice.operate.gc import Plan

_KEEP = re.compile(r"(\d+)(d|h|m|s)")
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_SHOWN_HOLDS = 5


def _age(context: click.Context, option: click.Parameter, text: str) -> timedelta:  # noqa: ARG001 - the form of a callback
    match = _KEEP.fullmatch(text)
    if match is None:
        raise click.BadParameter("a number with d, h, m or s, such as 7d or 36h")
    try:
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError as error:
        raise click.BadParameter("too long") from error


@click.command("gc")
@click.option(
    "--keep",
    default="7d",
    show_default=True,
    metavar="AGE",
    callback=_age,
    help="Keep what younger entries name, applied or not.",
)
@click.option("--yes", is_flag=True, help="Delete; without it nothing is changed.")
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def collect(invocation: Invocation, keep: timedelta, yes: bool, json_wanted: bool) -> None:  # noqa: FBT001 - a command's parameters
    """Delete segments that every table has in the lake, files of dead writers, and old checkpoints.
    Without --yes: only show them.

    Works while ingest and applier run. Manifest entries stay, so that `spool verify` can always
    follow the chain from its beginning. A table that is behind, being snapshotted, stale or unknown to
    the applier keeps what it needs and is named. What was deleted cannot be applied again: a lake
    that is lost afterwards is read from the source again.

    \b
    Examples:
      sluice spool gc
      sluice spool gc --keep 36h --yes
    """
    wiring.require("obstore")
    from sluice.operate import gc

    store = wiring.open_spool(invocation.settings().settings)
    plan = gc.plan(store, keep=keep)
    if yes:
        gc.carry_out(store, plan)
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
    given_up = (
        f"nothing needs the objects of those through {plan.through_seq} ({show(plan.through_lsn)})"
        if plan.through_seq
        else "each is still needed"
    )
    click.echo(f"of {plan.entries} entries, {given_up}")
    for hold in plan.holds[:_SHOWN_HOLDS]:
        click.echo(one_line(f"  {hold}"))
    if len(plan.holds) > _SHOWN_HOLDS:
        click.echo(f"  and {len(plan.holds) - _SHOWN_HOLDS} more keep a part of the rest")
    what = (
        f"{len(plan.objects)} objects ({output.amount(plan.bytes)}), {len(plan.leftovers)} leftovers, "
        f"{len(plan.checkpoints)} checkpoints"
    )
    click.echo(f"deleted: {what}" if done else f"to delete: {what}")
    if not done:
        click.echo("nothing was changed; --yes deletes", err=True)
