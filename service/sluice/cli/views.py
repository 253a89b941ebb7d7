"""`views`: SQL that makes views of the tables of the lake, all as of one boundary."""

from typing import TYPE_CHECKING

import click

from sluice.cli import lake_reading, wiring
from sluice.cli.invocation import Invocation, common
from sluice.printable import one_line

if TYPE_CHECKING:
    from sluice_lake import AsOf, Boundary, Lake


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--engine",
    type=click.Choice(["spark", "duckdb", "databricks"]),
    required=True,
    help="The engine whose SQL to print.",
)
@lake_reading.moment
@common
def views(invocation: Invocation, tables: tuple[str, ...], engine: str, moment: str) -> None:
    """Print SQL that creates views of all tables, or of those you name, as of one boundary.

    A boundary is a position for which the lake has one version of each live table: the lake as of
    one transaction at the source. The views work for as long as the lake offers the boundary; the
    first lines of the output say until when. Create them again before then. The view of a table
    that is not part of the boundary ends each query with an error. DuckDB needs its extension
    delta. Every engine must be configured to reach the store of the lake.

    \b
    Examples:
      sluice views --engine duckdb > views.sql
      sluice views --engine spark public.orders --as-of 16/B374D848
    """
    wiring.require("sluice_lake")
    lake = lake_reading.lake_of(invocation.settings().settings)
    found = lake_reading.as_of(lake, moment)
    with lake_reading.ours():
        click.echo(script(lake, found, engine, tables))


def script(lake: "Lake", found: "AsOf", engine: str, names: tuple[str, ...]) -> str:
    """SQL of views of the tables called `names`, or of all. Raises LakeError."""
    boundary = found.boundary
    chosen = [boundary.named(name) for name in names] or list(boundary.tables)
    until = lake.expires_at(boundary)
    lines = [
        f"-- All tables as of {boundary}.",
        f"-- Offered until {until.isoformat()}."
        if until is not None
        else f"-- Offered until {boundary.retention} after the next boundary.",
        *(one_line(f"-- Not part of it: {name} ({state})") for name, state in sorted(boundary.left_out.items())),
    ]
    if not names:
        # A view of before would show an earlier boundary beside the others.
        lines += [line for name in sorted(boundary.left_out) for line in _refusing(boundary, name, engine)]
    if engine == "spark":
        views = found.spark_views(chosen)
    else:
        tick = _standard if engine == "duckdb" else _ticked
        named = ((f"{tick(one.schema)}.{tick(boundary.name_in_schema(one))}", one) for one in chosen)
        views = boundary.views(named, engine={"duckdb": "DuckDB", "databricks": "Databricks"}[engine])
    for view, table in views.items():
        place = _place(found.uri_of(table.name), engine)
        if engine == "duckdb":
            rows = f"delta_scan({_text(place)}, version => {table.version})"
            lines += [
                f"CREATE SCHEMA IF NOT EXISTS {_standard(table.schema)};",
                f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {rows};",
            ]
        elif engine == "spark":
            lines.append(
                f"CREATE OR REPLACE TEMPORARY VIEW {_ticked(view)} AS "
                f"SELECT * FROM delta.{_ticked(place)} VERSION AS OF {table.version};"
            )
        else:
            lines += [
                f"CREATE SCHEMA IF NOT EXISTS {_ticked(table.schema)};",
                f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM delta.{_ticked(place)} VERSION AS OF {table.version};",
            ]
    return "\n".join(dict.fromkeys(lines))


def _refusing(boundary: "Boundary", name: str, engine: str) -> list[str]:
    """SQL of a view that says of a table that it is left out, whatever it is asked."""
    from sluice_lake.boundary import parts_of

    schema, table = parts_of(name)
    view, why = table.rpartition("/")[2], one_line(f"{name} is {boundary.left_out[name]}, and not part of {boundary}")
    if engine == "duckdb":
        return [
            f"CREATE SCHEMA IF NOT EXISTS {_standard(schema)};",
            (
                f"CREATE OR REPLACE VIEW {_standard(schema)}.{_standard(view)} AS "
                f"SELECT NULL AS left_out WHERE error({_text(why)});"
            ),
        ]
    said = "'" + why.replace("\\", "\\\\").replace("'", "\\'") + "'"
    query = f"SELECT NULL AS left_out WHERE raise_error({said}) IS NULL;"
    if engine == "spark":
        places = (view, f"{schema}_{view}")
        return [f"CREATE OR REPLACE TEMPORARY VIEW {_ticked(place)} AS {query}" for place in places]
    return [
        f"CREATE SCHEMA IF NOT EXISTS {_ticked(schema)};",
        f"CREATE OR REPLACE VIEW {_ticked(schema)}.{_ticked(view)} AS {query}",
    ]


def _place(uri: str, engine: str) -> str:
    if engine == "spark" and uri.startswith("s3://"):
        return uri.replace("s3://", "s3a://", 1)
    return uri if "://" in uri else f"file://{uri}"


def _standard(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
