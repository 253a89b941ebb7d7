"""`slot`: what the pipeline's replication slot is and holds, and the acts that want a person's own
word.
"""

from typing import TYPE_CHECKING, Any

import click

from sluice import lsn
from sluice.cli import deadline, output, table_names, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.policies import targets_of
from sluice.contract.control import RESYNC
from sluice.errors import UsageError
from sluice.lsn import show
from sluice.printable import one_line

if TYPE_CHECKING:
    from sluice.operate.slots import SlotReport
    from sluice.settings import Settings


@click.group()
@common
def slot(invocation: Invocation) -> None:
    """Show the replication slot, drop it, move it forward, or continue with a new one.

    \b
    Examples:
      sluice slot show
      sluice slot recreate
      sluice slot advance --to 16/B374D848
    """


@slot.command("show")
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def show_slot(invocation: Invocation, json_wanted: bool) -> None:  # noqa: FBT001 - a command's parameter
    """Show the slot, the WAL that it retains, and whether the pipeline can continue from it. Changes nothing.

    If the object store does not answer, the command shows what the server says of the slot. The exit
    code is then 75, because only the manifest says whether the pipeline can continue.

    \b
    Examples:
      sluice slot show
      sluice slot show --json
    """
    wiring.require("psycopg", "obstore")
    settings = invocation.settings().settings
    from sluice.operate.slots import examine

    store = deadline.PromptStore(wiring.open_spool(settings))
    report = examine(wiring.source_options(settings), store, two_phase=settings.source.two_phase)
    facts = _facts(settings.source.slot, report)
    if json_wanted:
        output.as_json({"schema_version": 1, **facts})
    else:
        rows = [(name.replace("_", " "), "-" if value in (None, "") else str(value)) for name, value in facts.items()]
        invocation.console().print(output.table("", ("", ""), rows))
    if report.unread is not None:
        raise report.unread


@slot.command("drop")
@click.option("--confirm", metavar="NAME", help="The slot's name. Without this option the command asks you to type it.")
@common
def drop_slot(invocation: Invocation, confirm: str | None) -> None:
    """Drop the slot of a pipeline that you no longer need. The server may then remove all WAL that
    the slot kept. The command refuses if the server or database is not the one in the manifest.

    \b
    Examples:
      sluice slot drop
      sluice slot drop --confirm sluice_shop
    """
    wiring.require("psycopg", "obstore")
    settings = invocation.settings().settings
    from sluice.operate.slots import drop

    _confirmed(settings.source.slot, confirm, "drops it for good; the pipeline cannot go on afterwards")
    drop(wiring.source_options(settings), deadline.PromptStore(wiring.open_spool(settings)))
    click.echo(f"slot {settings.source.slot} is dropped")


@slot.command("recreate")
@click.option("--confirm", metavar="NAME", help="The slot's name. Without this option the command asks you to type it.")
@click.option(
    "--upgraded",
    is_flag=True,
    help="The pipeline's server was upgraded by pg_upgrade: continue there, after a comparison.",
)
@common
def recreate_slot(invocation: Invocation, confirm: str | None, upgraded: bool) -> None:  # noqa: FBT001 - a command's parameter
    """Continue with a new slot after the pipeline's slot was lost: dropped, invalidated or advanced
    by somebody else.

    The changes that were not received are lost, and the manifest records that. Each table with a
    key that the lake mirrors gets a gap: its lake table stays as it was, and its later changes wait
    in the spool. `sluice verify --repair` then compares it with the source, reads again the rows
    that differ and makes it live. All other tables become stale, and ingest reads them again from
    new snapshots as soon as it runs; a changelog then loses the changes that it has. The command
    refuses if the slot is not lost, or if the server is a different one. If the command is
    interrupted, run it again: it continues.

    Use --upgraded after pg_upgrade. The command checks that the server has a newer major version,
    another system identifier, and the same database and tables. The tables get a gap in the same
    way, so that a comparison can prove that nothing was lost. docs/how-to/upgrades.md has the
    steps.

    \b
    Examples:
      sluice slot recreate
      sluice slot recreate --confirm sluice_shop && sluice run
      sluice slot recreate --upgraded
    """
    wiring.require("psycopg", "obstore")
    settings = invocation.settings().settings
    from sluice.operate.new_slot import recreate

    _confirmed(settings.source.slot, confirm, "records that the changes it should have kept are lost")
    store = wiring.open_spool(settings)
    known = {f"{table[0]}.{table[1]}": table for table in table_names.in_manifest(store)}
    done = recreate(
        wiring.ingest_options(settings, instance="sluice slot recreate"),
        store,
        mirrored=lambda name: not _has_changelog(settings, name),
        resync=lambda name: table_names.request(store, RESYNC, known[name]),
        upgraded=upgraded,
    )
    click.echo(f"lost: all changes after {show(done.from_lsn)} through {show(done.to_lsn)}")
    click.echo(f"slot {settings.source.slot} goes on at {show(done.to_lsn)}")
    for name in done.gaps:
        click.echo(one_line(f"{name}: has a gap; `sluice verify --repair` closes it"))
    for name in done.stale:
        said = (
            "will be resynced, and its changelog then loses the changes that it has"
            if _has_changelog(settings, name)
            else "cannot be compared by a key, and will be resynced"
        )
        click.echo(one_line(f"{name}: {said}"))


@slot.command("advance")
@click.option(
    "--to", "to_lsn", required=True, metavar="X/Y", help="The position to move to, not after the end of the manifest."
)
@click.option("--confirm", metavar="NAME", help="The slot's name. Without this option the command asks you to type it.")
@common
def advance_slot(invocation: Invocation, to_lsn: str, confirm: str | None) -> None:
    """Move the slot forward to what the manifest holds, so that the server frees WAL.

    Use it only while ingest is stopped: a running pipeline moves its slot itself. A position after
    the end of the manifest is refused, because the changes in between would be lost.

    \b
    Examples:
      sluice slot advance --to 16/B374D848
      sluice slot advance --to 16/B374D848 --confirm sluice_shop
    """
    wiring.require("psycopg", "obstore")
    settings = invocation.settings().settings
    from sluice.operate.slots import advance

    target = lsn.parse(to_lsn)
    _confirmed(settings.source.slot, confirm, f"moves it to {show(target)}; it never goes back")
    store = deadline.PromptStore(wiring.open_spool(settings))
    reached = advance(wiring.source_options(settings), store, to_lsn=target)
    click.echo(f"slot {settings.source.slot} is at {show(reached)}")


def _has_changelog(settings: "Settings", table: str) -> bool:
    return any(target.keeps_changes for target in targets_of(settings, table))


def _confirmed(name: str, given: str | None, consequence: str) -> None:
    question = f"Type the slot's name, {name}: this {consequence}"
    try:
        typed = click.prompt(question, default="", show_default=False, err=True) if given is None else given
    except click.Abort as ended:
        if not isinstance(ended.__context__, EOFError):
            raise
        typed = ""
    if typed != name:
        raise UsageError(f"that is not the name of the slot, {name}; nothing was done", hint="--confirm NAME gives it")


def _facts(name: str, report: "SlotReport") -> dict[str, Any]:
    from sluice.health.wal import slot_json

    found = {"exists": False} if report.slot is None else {"exists": True, **slot_json(report.server, report.slot)}
    manifest = show(report.manifest.through_lsn) if report.manifest.opened else None
    return {
        "slot": name,
        **found,
        "manifest_through_lsn": manifest,
        "problem": report.problem or None,
        "what_to_do": report.remedy or None,
    }
