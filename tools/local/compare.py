"""Does a lake table equal its source table? Row by row, by PostgreSQL's own text, read by an engine
that is not Spark.

The source is read as the text its output functions print, Delta by delta-rs (a scan: its `count`
ignores deletion vectors). A value is its text, whether the lake holds it typed or marked in the
special column. Invariant: rows are compared as a multiset, all of them, all columns; what is
reported names keys by hash and columns by name, never a value.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from types import MappingProxyType

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from psycopg import sql

from sluice.contract import envelope, keys
from tools.local.rendering import postgres_texts, same_float

Row = tuple[str | None, ...]

SESSION: Mapping[str, str] = {
    "datestyle": "ISO, MDY",
    "timezone": "UTC",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "search_path": "",
}
"""What changes the text of a value, as the stream's sessions have it too."""


@dataclass(frozen=True)
class Comparison:
    """The outcome for one table. Checksums do not depend on the order of rows; `differences` is
    empty exactly when the tables are equal.
    """

    schema: str
    table: str
    source_rows: int
    lake_rows: int
    source_checksum: str
    lake_checksum: str
    differences: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        return not self.differences


@dataclass(frozen=True)
class _Rows:
    """`floats` has the width in bits of those columns that hold floats or arrays of them."""

    columns: tuple[str, ...]
    rows: list[Row]
    floats: Mapping[str, int] = field(default_factory=dict)


def compare_table(
    connection: psycopg.Connection,
    *,
    schema: str,
    table: str,
    lake_uri: str,
    path: str = "",
    storage_options: Mapping[str, str] | None = None,
    limit: int = 20,
    masked: Mapping[str, str] = MappingProxyType({}),
) -> Comparison:
    """Compares `schema.table` at the source with `<lake_uri>/<path>`, which is `<schema>/<table>` unless
    it is given; neither may be changing.

    `storage_options` are delta-rs's own. A table that the lake keeps as a changelog is compared by
    the inserts behind its last truncate. At most `limit` differences are spelled out. `masked` columns have this
    text in the lake wherever the source has a value.
    """
    source, key = read_source(connection, schema=schema, table=table)
    source = _masked(source, masked)
    try:
        lake = read_lake(
            f"{lake_uri.rstrip('/')}/{path or keys.lake_path(schema, table)}",
            source.columns,
            storage_options=storage_options,
        )
    except TableNotFoundError:
        lake = _Rows((), [])
        found: Sequence[str] = ["the lake has no such table"]
    else:
        source = _with_same_floats(source, lake.floats)
        found = _differences(source, lake, key)
    shown = (*found[:limit], *([f"and {len(found) - limit} more"] if len(found) > limit else []))
    return Comparison(schema, table, len(source.rows), len(lake.rows), _checksum(source), _checksum(lake), shown)


def _masked(source: _Rows, masked: Mapping[str, str]) -> _Rows:
    masks = [masked.get(name) for name in source.columns]
    if not masked:
        return source
    rows: list[Row] = [
        tuple(value if value is None or mask is None else mask for value, mask in zip(row, masks, strict=True))
        for row in source.rows
    ]
    return replace(source, rows=rows)


def read_source(connection: psycopg.Connection, *, schema: str, table: str) -> tuple[_Rows, tuple[int, ...]]:
    """The table's rows as text in its own column order, and the positions of its primary key's
    columns. Generated columns are left out.
    """
    with connection.transaction(), connection.cursor() as cursor:
        for name, value in SESSION.items():
            cursor.execute("SELECT pg_catalog.set_config(%s, %s, true)", (name, value))
        found = cursor.execute(_COLUMNS, (schema, table)).fetchall()
        names = tuple(name for name, _, _ in found)
        only = sql.SQL("" if found and found[0][2] == "p" else "ONLY")
        listed = sql.SQL(", ").join(map(sql.Identifier, names))
        # COPY prints with the types' output functions, as the stream does; a cast to text would not
        # (boolean, character(n)).
        with cursor.copy(
            sql.SQL("COPY (SELECT {} FROM {} {}) TO STDOUT").format(listed, only, sql.Identifier(schema, table))
        ) as copy:
            rows: list[Row] = list(copy.rows())
    return _Rows(names, rows), tuple(at for at, (_, is_key, _) in enumerate(found) if is_key)


_COLUMNS = """
SELECT a.attname, coalesce(a.attnum = ANY (i.indkey), false), c.relkind::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE n.nspname = %s AND c.relname = %s
ORDER BY a.attnum
"""


def read_lake(path: str, wanted: Sequence[str], *, storage_options: Mapping[str, str] | None = None) -> _Rows:
    """The Delta table's rows as PostgreSQL's text, columns in the order `wanted`, then those that
    were not wanted.
    """
    delta = DeltaTable(path.removeprefix("file://"), storage_options=dict(storage_options) if storage_options else None)
    scanned = pa.table(delta.scan()).combine_chunks()
    own = [name for name in scanned.column_names if not envelope.is_reserved(name)]
    names = [name for name in wanted if name in own] + [name for name in own if name not in wanted]
    special = _specials(scanned)
    texts = [_column_texts(scanned.column(name), name, special) for name in names]
    rows: list[Row] = list(zip(*texts, strict=True)) if texts else [()] * scanned.num_rows
    if envelope.OP in scanned.column_names:
        rows = list(compress(rows, _inserts_behind_truncate(scanned)))
    return _Rows(tuple(names), rows, _float_widths(scanned.schema))


def _float_widths(schema: pa.Schema) -> dict[str, int]:
    types = {name: schema.field(name).type for name in schema.names}
    elements = {
        name: kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
        for name, kind in types.items()
    }
    return {name: kind.bit_width for name, kind in elements.items() if pa.types.is_floating(kind)}


def _with_same_floats(source: _Rows, widths: Mapping[str, int]) -> _Rows:
    """A float's text is not unique to the last digit, its value is: both sides spell it in one way."""
    at = {source.columns.index(name): bits for name, bits in widths.items() if name in source.columns}
    if not at:
        return source
    spelled = [
        tuple(same_float(text, bits=at[place]) if place in at else text for place, text in enumerate(row))
        for row in source.rows
    ]
    return replace(source, rows=spelled)


def _inserts_behind_truncate(changelog: pa.Table) -> list[bool]:
    """Which of a changelog's rows make the table: of one without identity nothing but inserts and
    truncates is ever published.
    """
    order = list(
        zip(changelog.column(envelope.LSN).to_pylist(), changelog.column(envelope.ORDINAL).to_pylist(), strict=True)
    )
    ops = changelog.column(envelope.OP).to_pylist()
    last = max((at for at, op in zip(order, ops, strict=True) if op == envelope.OP_TRUNCATE), default=(-1, -1))
    return [op != envelope.OP_TRUNCATE and at > last for at, op in zip(order, ops, strict=True)]


def _specials(scanned: pa.Table) -> list[tuple[int, dict[str, str]]]:
    if envelope.SPECIAL not in scanned.column_names:
        return []
    column = scanned.column(envelope.SPECIAL)
    positions = pc.indices_nonzero(column.is_valid()).to_pylist()
    return [(at, dict(column[at].as_py())) for at in positions]


def _column_texts(column: pa.ChunkedArray, name: str, special: list[tuple[int, dict[str, str]]]) -> list[str | None]:
    texts = [text for chunk in column.chunks for text in postgres_texts(chunk)]
    for at, marked in special:
        if name in marked:
            # A value must be in one place: one that is typed and marked as well equals nothing at
            # the source.
            texts[at] = marked[name] if texts[at] is None else "\0both typed and marked"
    return texts


def _differences(source: _Rows, lake: _Rows, key: tuple[int, ...]) -> list[str]:
    if source.columns != lake.columns:
        missing = [name for name in source.columns if name not in lake.columns]
        extra = [name for name in lake.columns if name not in source.columns]
        return [f"columns differ: {missing} are not in the lake, {extra} are not at the source"]
    at_source, in_lake = Counter(source.rows), Counter(lake.rows)
    if at_source == in_lake:
        return []
    lost, surplus = list((at_source - in_lake).elements()), list((in_lake - at_source).elements())
    if not key:
        return [f"{len(lost)} rows are not in the lake", f"{len(surplus)} rows are not at the source"]
    found = []
    by_key = {tuple(row[at] for at in key): row for row in surplus}
    doubled = {one for one, count in Counter(tuple(row[at] for at in key) for row in lake.rows).items() if count > 1}
    for row in lost:
        one = tuple(row[at] for at in key)
        other = by_key.pop(one, None)
        if other is None:
            found.append(f"key {_named(one)} is not in the lake")
        else:
            unequal = [name for name, here, there in zip(source.columns, row, other, strict=True) if here != there]
            found.append(f"key {_named(one)} differs in {', '.join(unequal)}")
    found += [f"key {_named(one)} is in the lake more than once" for one in doubled]
    found += [f"key {_named(one)} is not at the source" for one in by_key if one not in doubled]
    return found


def _named(key: Row) -> str:
    return hashlib.blake2b(repr(key).encode(), digest_size=4).hexdigest()


def _checksum(rows: _Rows) -> str:
    total = sum(
        int.from_bytes(hashlib.blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        for row in rows.rows
    )
    return f"{total % (1 << 64):016x}"
