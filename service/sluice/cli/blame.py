"""`blame`: every version of a row that the spool has."""

import json
from typing import TYPE_CHECKING, Any

import click

from sluice.cli import output, table_names, wiring
from sluice.cli.invocation import Invocation, common
from sluice.lsn import show
from sluice.printable import counted, one_line

if TYPE_CHECKING:
    from sluice.operate.blame import RowVersion


@click.command()
@click.argument("table", shell_complete=table_names.completed)
@click.argument("key", nargs=-1, required=True)
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def blame(invocation: Invocation, table: str, key: tuple[str, ...], json_wanted: bool) -> None:  # noqa: FBT001 - a command's parameters
    """Show every version of one row that the spool has.

    For each version it shows the position and time of its commit, the transaction and its origin,
    the values, and the logical messages of that transaction. The output contains your data.

    Give the key as PostgreSQL prints it, with one argument for each column of the key. The command
    reads neither PostgreSQL nor the lake. It cannot show versions that pruning has deleted
    (spool.retention), and says where the spool begins.

    \b
    Examples:
      sluice blame public.orders 42
      sluice blame public.order_lines 42 1 --json
    """
    wiring.require("obstore", "pyarrow")
    from sluice.manifest.reader import load_state, pruned_through
    from sluice.operate.blame import versions_of

    store = wiring.open_spool(invocation.settings().settings)
    manifest = load_state(store)
    known = table_names.carried(manifest.tables.values())
    state = known[table_names.named(table, known, what="a table that the pipeline carries")]
    pruned = pruned_through(store)
    found = list(versions_of(store, state, key, after_seq=pruned, through_seq=manifest.seq))
    if json_wanted:
        output.as_json({"schema_version": 1, "spool_begins_after_entry": pruned, "versions": list(map(_facts, found))})
    else:
        for version in found:
            _show(version)
        click.echo(f"{counted(len(found), 'version')} in the spool", err=True)
        if pruned:
            click.echo(f"the spool begins after entry {pruned}: earlier versions were pruned", err=True)


def _facts(version: "RowVersion") -> dict[str, Any]:
    return {
        "entry": version.entry,
        "lsn": show(version.lsn),
        "how": version.how,
        "at": version.at.isoformat() if version.at is not None else None,
        "xid": version.xid,
        "origin": version.origin or None,
        "moved": version.moved,
        "values": {name: _plain(value) for name, value in version.values.items()},
        "not_sent": list(version.not_sent),
        "messages": list(version.messages),
    }


def _show(version: "RowVersion") -> None:
    at = version.at.isoformat(sep=" ", timespec="milliseconds") if version.at is not None else "-"
    moved = ", key changed" if version.moved else ""
    origin = f", from {version.origin}" if version.origin else ""
    click.echo(one_line(f"{show(version.lsn)}  {at}  xid {version.xid or '-'}{origin}  {version.how}{moved}"))
    if version.values:
        values = ", ".join(
            f"{name}={json.dumps(_plain(value), ensure_ascii=False)}" for name, value in version.values.items()
        )
        click.echo(one_line(f"    {values}"))
    if version.not_sent:
        click.echo(one_line(f"    unchanged and not sent: {', '.join(version.not_sent)}"))
    for message in version.messages:
        click.echo(one_line(f"    message {message}"))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
