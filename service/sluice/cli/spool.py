"""`spool`: what is stored, without the service, the source or the lake."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from sluice.cli import deadline, output, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.spool_gc import collect
from sluice.cli.spool_inspect import inspect
from sluice.errors import VerificationFailed
from sluice.lsn import show
from sluice.printable import counted, one_line

if TYPE_CHECKING:
    from sluice.contract.entries import Entry

_SHOWN_FLAWS = 50
_COLUMNS = {
    "entry": "seq",
    "through": "through_lsn",
    "commits": "transactions",
    "files": "files",
    "rows": "rows",
    "what": "what",
}


@click.group()
@common
def spool(invocation: Invocation) -> None:
    """Inspect the spool. This works while nothing runs, and needs neither PostgreSQL nor Spark.

    \b
    Examples:
      sluice spool ls --last 5
      sluice spool verify --content
      sluice spool gc
    """


spool.add_command(inspect)
spool.add_command(collect)


@spool.command("ls")
@click.option(
    "--last",
    default=20,
    show_default=True,
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="How many of the newest manifest entries to list.",
)
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def list_entries(invocation: Invocation, last: int, json_wanted: bool) -> None:  # noqa: FBT001 - a command's parameter
    """List the newest manifest entries: what each holds, and through which LSN.

    \b
    Examples:
      sluice spool ls
      sluice spool ls --last 3 --json
    """
    wiring.require("obstore")
    from sluice.manifest.reader import load_state, read_entries

    store = deadline.PromptStore(wiring.open_spool(invocation.settings().settings))
    newest = load_state(store).seq
    found = [_facts(entry) for entry, _ in read_entries(store, after_seq=max(0, newest - last))]
    if json_wanted:
        output.as_json({"schema_version": 1, "entries": found})
        return
    rows = [tuple("" if facts[name] is None else str(facts[name]) for name in _COLUMNS.values()) for facts in found]
    invocation.console().print(output.table("", tuple(_COLUMNS), rows, right=("entry", "commits", "files", "rows")))


@spool.command("verify")
@click.option("--content", is_flag=True, help="Read every object and compare its hash, not only its size.")
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def verify_spool(invocation: Invocation, content: bool, json_wanted: bool) -> None:  # noqa: FBT001 - a command's parameters
    """Check that the spool is complete and undamaged: the chain of entries, and every object that
    an entry names. The exit code is 4 if it is not.

    Pruned objects are counted separately; pruning records what it deletes before it deletes it. If
    entries were pruned as well, the hash of the last pruned entry is compared.

    \b
    Examples:
      sluice spool verify
      sluice spool verify --content --json
    """
    wiring.require("obstore")
    from sluice.operate.spool_verify import verify

    verdict = verify(wiring.open_spool(invocation.settings().settings), content=content)
    state = verdict.state
    if json_wanted:
        facts: dict[str, Any] = {
            "entries": state.seq,
            "through_lsn": show(state.through_lsn),
            "objects": verdict.objects,
            "bytes": verdict.bytes,
        }
        facts["pruned"] = {
            "through_entry": verdict.horizon.through_seq,
            "objects": verdict.pruned,
            "entries": verdict.base_seq,
        }
        output.as_json(
            {
                "schema_version": 1,
                **facts,
                "content_compared": content,
                "flaws": [asdict(flaw) for flaw in verdict.flaws],
            }
        )
    else:
        compared = "sizes and hashes" if content else "sizes"
        click.echo(
            f"{counted(state.seq, 'entry', 'entries')} through {show(state.through_lsn)}; "
            f"{counted(verdict.objects, 'object')}, "
            f"{output.amount(verdict.bytes)}, {compared} compared"
        )
        if verdict.pruned:
            click.echo(
                f"{counted(verdict.pruned, 'more object')}, named only by entries through "
                f"{verdict.horizon.through_seq}: applied everywhere and pruned"
            )
        if verdict.base_seq:
            click.echo(f"entries through {verdict.base_seq} are pruned as well; the chain was followed from there")
        for flaw in verdict.flaws[:_SHOWN_FLAWS]:
            click.echo(one_line(f"entry {flaw.seq}: {flaw.key or 'the chain'}: {flaw.what}"))
    if verdict.flaws:
        raise VerificationFailed(
            f"the spool has {counted(len(verdict.flaws), 'flaw')}",
            hint="restore the objects that are named, or resync the tables",
        )


def _facts(entry: "Entry") -> dict[str, Any]:
    from sluice.contract.entries import Changes, Repair, Snapshot, Table
    from sluice.manifest.leftovers import referenced

    body = entry.body
    files = referenced(body)
    about = ""
    if isinstance(body, Table):
        about = f"{body.schema_name}.{body.table_name}{f': {body.state}' if body.state else ''}"
    elif isinstance(body, Snapshot | Repair):
        about = f"of {body.table_id}, generation {body.generation}"
    elif isinstance(body, Changes):
        tables = f"with changes of {counted(len(body.tables), 'table')}" if body.tables else ""
        ended = f"{len(body.prepared)} prepared, {len(body.ended)} prepared ended"
        about = "; ".join(filter(None, (tables, ended if body.prepared or body.ended else "")))
    return {
        "seq": entry.seq,
        "epoch": entry.epoch,
        "kind": body.kind,
        "what": f"{body.kind} {about}".strip(),
        "through_lsn": show(entry.through_lsn),
        "written_at": entry.written_at,
        "transactions": len(body.commits) if isinstance(body, Changes) else None,
        "files": len(files) or None,
        "rows": sum(file.rows for file in files) if files else None,
    }
