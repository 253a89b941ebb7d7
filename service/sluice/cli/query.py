"""`query`: SQL over the tables of the lake, all as of one boundary."""

import csv
import itertools
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from sluice.cli import lake_reading, output, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.texts import utf8
from sluice.errors import UsageError
from sluice.printable import counted

if TYPE_CHECKING:
    import duckdb

    from sluice_lake import AsOf, Table

SHOWN = 1000
"""Rows of a table for people: more are for a file."""


@click.command()
@click.argument("statement", metavar="SQL", callback=utf8)
@lake_reading.moment
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="Form of the answer. With json, each row is one object.",
)
@common
def query(invocation: Invocation, statement: str, moment: str, form: str) -> None:
    """Query the lake in SQL with DuckDB, on this machine. It reads all tables as of one transaction
    at the source.

    Name a table as schema.table or by its name alone. A name alone means the table in public, or
    the only table of that name. The command reads only the lake: neither PostgreSQL nor Spark has
    to run. On stderr it prints the position that it read.

    A boundary is a position for which the lake has one version of each live table. The exit code is
    75 if the lake has not reached the position of --as-of, or if a table of the query is not part
    of the boundary. It is 2 if the boundary has expired (lake.boundary_retention) or the SQL is
    wrong.

    \b
    Examples:
      sluice query 'SELECT status, count(*) FROM orders GROUP BY status'
      sluice query 'SELECT * FROM orders' --as-of 16/B374D848 -o parquet > orders.parquet
      sluice query 'SELECT sum(total) FROM orders' --as-of 2026-01-31T12:00:00Z
    """
    wiring.require("sluice_lake", "duckdb")
    if form == "parquet" and sys.stdout.isatty():
        raise UsageError("Parquet cannot be printed on a terminal", hint="redirect it: -o parquet > FILE")
    settings = invocation.settings().settings
    found = lake_reading.as_of(lake_reading.lake_of(settings), moment)
    with lake_reading.ours():
        answer = _answer(found, statement)
    if form in ("json", "parquet"):
        answer = answer.rename_columns(_told_apart(answer.column_names))
    click.echo(f"as of {found.boundary}", err=True)
    _FORMS[form](invocation, answer)


def _answer(found: "AsOf", statement: str) -> Any:
    """Raises LakeError, UsageError."""
    import duckdb

    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    try:
        found.duckdb(connection, tables=_named(found, connection, statement))
        answer = connection.sql(statement)
        if answer is not None:
            return answer.to_arrow_table()
    except duckdb.Error as error:
        found.require_readable()  # what it needs may have gone meanwhile, and DuckDB only knows that a read failed
        _refused(error)
    raise UsageError(
        "the statement returns no rows", hint="`sluice query` takes statements that return rows, such as SELECT"
    )


def _named(found: "AsOf", connection: "duckdb.DuckDBPyConnection", statement: str) -> list[str]:
    """The tables of the lake that `statement` may name: no other one is opened. Raises TableLeftOut."""
    boundary = found.boundary
    wanted = _base_tables(connection, statement)
    if wanted is None:
        return [table.name for table in boundary.tables]
    for left in boundary.left_out:
        schema, table = _parts(left)
        if {(schema, table), *([("", table)] if schema == "public" else [])} & wanted:
            boundary.named(left)
    return [table.name for table in boundary.tables if _names(found, table) & wanted]


def _names(found: "AsOf", table: "Table") -> set[tuple[str, str]]:
    """Schema and name of each view of `table`."""
    inside = {table.table, found.boundary.name_in_schema(table)}
    schema = table.schema.casefold()
    return {*((schema, name.casefold()) for name in inside), ("", found.short_name(table).casefold())}


def _base_tables(connection: "duckdb.DuckDBPyConnection", statement: str) -> set[tuple[str, str]] | None:
    """Schema and name of what the statement reads, as it spells them; None when DuckDB's parser names nothing, as for
    what is no SELECT.
    """
    text = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement]).fetchall()[0][0]
    tree: Any = json.loads(text)
    if tree.get("error"):
        return None
    named, waiting = set(), [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                named.add((node["schema_name"].casefold(), node["table_name"].casefold()))
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return named or None


def _parts(name: str) -> tuple[str, str]:
    """Schema and name in a name as the boundary spells it."""
    (parts,) = csv.reader([name], delimiter=".", doublequote=True)
    return parts[0].casefold(), parts[1].casefold()


def _refused(error: "duckdb.Error") -> NoReturn:
    """What DuckDB says of the statement is said, and what it says of rows is not."""
    import duckdb

    if isinstance(error, duckdb.ParserException | duckdb.BinderException | duckdb.CatalogException):
        raise UsageError(str(error).strip(), hint="write the SQL of DuckDB; `sluice tables` lists the tables")
    raise UsageError(
        f"the statement failed ({type(error).__name__}); its message is not shown because it may quote a row",
        hint="cast with TRY_CAST, or ask for fewer rows at once",
    ) from None


def _told_apart(columns: list[str]) -> list[str]:
    """Names for a form that holds one column of each name: the second `id` is `id_1`, as DuckDB names it in a view."""
    names: list[str] = []
    for column in columns:
        candidates = itertools.chain((column,), (f"{column}_{number}" for number in itertools.count(1)))
        names.append(next(name for name in candidates if name not in names))
    return names


def _as_table(invocation: Invocation, answer: Any) -> None:
    from sluice.operate.answers import plain

    shown = answer.slice(0, SHOWN)
    columns = [["" if value is None else str(plain(value)) for value in column.to_pylist()] for column in shown.columns]
    rows = list(map(list, zip(*columns, strict=True)))
    invocation.console().print(output.table("", answer.column_names, rows))
    if answer.num_rows > SHOWN:
        click.echo(
            f"{counted(answer.num_rows - SHOWN, 'more row is', 'more rows are')} not shown; -o csv has them all",
            err=True,
        )


def _as_csv(_: Invocation, answer: Any) -> None:
    from sluice.operate.answers import as_csv

    sys.stdout.buffer.write(as_csv(answer))


def _as_json(_: Invocation, answer: Any) -> None:
    from sluice.operate.answers import json_text

    for batch in answer.to_batches():
        for row in batch.to_pylist():
            click.echo(json_text(row))


def _as_parquet(_: Invocation, answer: Any) -> None:
    from sluice.operate.answers import as_parquet

    sys.stdout.buffer.write(as_parquet(answer))


_FORMS: dict[str, Callable[[Invocation, Any], None]] = {
    "table": _as_table,
    "csv": _as_csv,
    "json": _as_json,
    "parquet": _as_parquet,
}
