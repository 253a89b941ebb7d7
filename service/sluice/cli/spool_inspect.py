"""`spool inspect`: one manifest entry or one segment, its facts and never its rows, unless rows are
asked for by number.
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sluice.cli import output, wiring
from sluice.cli.invocation import Invocation, common
from sluice.contract import codec, keys
from sluice.contract.entries import Changes, Entry, Opened, Segment, Snapshot, Table, digest
from sluice.errors import ObjectMissing, UsageError
from sluice.lsn import show
from sluice.printable import one_line

if TYPE_CHECKING:
    from sluice.store.base import ObjectStore

_NUMBER = re.compile("[0-9]{1,18}")


@click.command("inspect")
@click.argument("what", metavar="ENTRY|KEY")
@click.option(
    "--values",
    metavar="N",
    type=click.IntRange(1, 1000),
    help="Also print the first N rows of a segment, as JSON lines. The output contains your data.",
)
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def inspect(invocation: Invocation, what: str, values: int | None, json_wanted: bool) -> None:  # noqa: FBT001 - a command's parameters
    """Show one manifest entry by its number, or one segment by its key. Shows no row values without --values.

    \b
    Examples:
      sluice spool inspect 42
      sluice spool inspect data/16390/00000001-0000000002.parquet
      sluice spool inspect data/16390/00000001-0000000002.parquet --values 3
    """
    wiring.require("obstore", "pyarrow")
    store = wiring.open_spool(invocation.settings().settings)
    if _NUMBER.fullmatch(what):
        if values is not None:
            raise UsageError(
                "--values is for segments: an entry holds no rows", hint="inspect one of the keys that the entry names"
            )
        facts = _entry_facts(store, int(what))
    else:
        data = _segment(store, what)
        if values is not None:
            _print_rows(data, values)
            return
        facts = _segment_facts(store, what, data)
    if json_wanted:
        output.as_json({"schema_version": 1, **facts})
    else:
        _show(facts)


def _segment(store: "ObjectStore", key: str) -> bytes:
    if keys.placed(key) is None:
        raise UsageError(
            f"{key[:200]!r} is neither the number of an entry nor the key of a segment",
            hint="`sluice spool ls` lists entries; an entry names its segments",
        )
    try:
        return store.get(key)
    except ObjectMissing as error:
        raise UsageError(
            f"there is no object {key}",
            hint="`sluice spool verify` says whether it should be there; `spool gc` may have deleted it",
        ) from error


def _print_rows(data: bytes, count: int) -> None:
    from sluice.operate.segment_footer import first_rows

    for row in first_rows(data, count=count):
        click.echo(json.dumps(row, default=_text, ensure_ascii=False))


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _entry_facts(store: "ObjectStore", seq: int) -> dict[str, Any]:
    from sluice.manifest import entry_lookup

    found = entry_lookup.find(store, seq)
    if found is None:
        raise UsageError(f"there is no manifest entry {seq}", hint="`sluice spool ls` lists the newest")
    entry = found.entry
    return {
        "entry": entry.seq,
        "kind": entry.body.kind,
        "epoch": entry.epoch,
        "through_lsn": show(entry.through_lsn),
        "written_at": entry.written_at,
        "sha256": found.sha256,
        "previous_sha256": entry.previous_sha256 or None,
        **_body_facts(entry),
    }


def _of_table(table: Table) -> dict[str, Any]:
    return {
        "table": f"{table.schema_name}.{table.table_name}",
        "state": table.state.value if table.state is not None else None,
        "reason": table.reason or None,
        "reason_code": table.why.code.value if table.why else None,
        **_table_facts(table),
    }


def _body_facts(entry: Entry) -> dict[str, Any]:
    match entry.body:
        case Opened() as opened:
            return {**codec.fields_to_json(opened), "start_lsn": show(opened.start_lsn)}
        case Table() as table:
            return _of_table(table)
        case Snapshot() as snapshot:
            head = {
                "table_id": snapshot.table_id,
                "generation": snapshot.generation,
                "snapshot_lsn": show(snapshot.snapshot_lsn),
                "final": snapshot.final,
            }
            return {**head, "segments": [_named(segment) for segment in snapshot.segments]}
        case Changes() as changes:
            ends = changes.commits.end_lsn
            return {
                **({"tables": [_of_table(table) for table in changes.tables]} if changes.tables else {}),
                "transactions": len(ends),
                "first_commit_lsn": show(ends[0]) if len(ends) else None,
                "last_commit_lsn": show(ends[-1]) if len(ends) else None,
                "with_origin": len(changes.commits.origins),
                "prepared": [
                    {"xid": one.xid, "prepare_end_lsn": show(one.end_lsn), "rows": one.rows} for one in changes.prepared
                ],
                "ended": [{"prepare_end_lsn": show(end.end_lsn), "fate": end.fate} for end in changes.ended],
                "segments": [
                    _named(segment)
                    for segment in (
                        *changes.segments,
                        *(part.segment for one in changes.prepared for part in one.parts),
                    )
                ],
            }
        case _:
            return {}


def _table_facts(table: Table) -> dict[str, Any]:
    facts: dict[str, Any] = {"table_id": table.table_id, "generation": table.generation, "lsn": show(table.lsn)}
    if table.schema is not None:
        columns = [
            {
                "name": column.name,
                "attnum": column.attnum,
                "type": column.type_name,
                "lake_type": column.lake.sql,
                "key": column.key,
            }
            for column in table.schema.columns
        ]
        facts |= {
            "table_schema_version": table.schema.version,
            "replica_identity": table.schema.replica_identity,
            "columns": columns,
        }
    return facts


def _named(segment: Segment) -> dict[str, Any]:
    """What an entry says of a segment, without the smallest and greatest keys: those are values."""
    return {
        "key": segment.key,
        "table_id": segment.table_id,
        "table_schema_version": segment.schema_version,
        "rows": segment.rows,
        "bytes": segment.bytes,
        "first_lsn": show(segment.first_lsn),
        "last_lsn": show(segment.last_lsn),
        "ops": segment.ops,
        "key_changes": segment.key_changes,
        "staged": segment.body is not None or segment.key.startswith(keys.STAGE),
    }


def _segment_facts(store: "ObjectStore", key: str, data: bytes) -> dict[str, Any]:
    from sluice.operate.naming_entry import naming
    from sluice.operate.segment_footer import described

    found = naming(store, key)
    facts: dict[str, Any] = {
        "key": key,
        "bytes": len(data),
        "sha256": digest(data),
        "named_by_entry": found[0].seq if found else None,
    }
    if found is not None:
        facts |= {
            "as_written": found[1].sha256 == facts["sha256"],
            **{name: value for name, value in _named(found[1]).items() if name not in facts},
        }
    return {**facts, **described(data)}


def _show(facts: Mapping[str, Any]) -> None:
    """One fact a line, then one line for each item of a list: nothing is folded, so that keys and
    hashes can be read and searched for.
    """
    width = max(map(len, facts))
    for name, value in facts.items():
        if not isinstance(value, list):
            click.echo(one_line(f"{_label(name):{width}}  {_cell(value)}"))
    for name, value in facts.items():
        if isinstance(value, list) and value:
            click.echo(f"{_label(name)}:")
        for item in value if isinstance(value, list) else ():
            first, *rest = item.items()
            click.echo(one_line(f"  {first[1]}: " + ", ".join(f"{_label(key)} {_cell(part)}" for key, part in rest)))


def _label(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(f"{name}={count}" for name, count in value.items()) if isinstance(value, dict) else str(value)
