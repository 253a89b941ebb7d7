"""SQL that hashes a table's rows on the server, in the form of `sluice.contract.row_form`.

Invariant: two rows have one hash when they are equal as their types' output functions print them;
nothing but numbers, and the keys of rows that were asked for, leaves the server. Names are quoted by
`sluice.quoting`, and no value is ever part of a statement. (PostgreSQL: String Functions;
pg_proc.dat, hashtextextended.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.contract.row_form import FLOATS, SEPARATOR, is_hashed
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import UnsupportedChange
from sluice.quoting import quote_identifier, quote_qualified
from sluice.source.rule_sql import text_sent, text_stored

_MOST_ARGUMENTS = 30
"""A function takes 100; each form has a separator, and the groups are joined again."""
_SENDS = {"float": ("float4", "pg_catalog.float4send"), "double": ("float8", "pg_catalog.float8send")}


@dataclass(frozen=True, slots=True)
class RowHashes:
    """The statements for one table, for a session that has the keys of its rules.

    `bits` of the hash of the key are the range of a row; a table
    without key is ranged by whole rows.
    """

    schema: TableSchema
    facts: TableFacts
    seed: int
    bits: int
    as_hex: bool
    row_filter: str = ""

    def sums(self, blocks: tuple[int, int] | None) -> str:
        """(range, rows, sum of hashes) of the rows in a range of blocks, or of all of them."""
        return (
            f"SELECT (key_hash & {self._mask})::int4, pg_catalog.count(*), pg_catalog.sum(row_hash)::text "
            f"FROM (SELECT {self._key_hash} AS key_hash, {self._row_hash} AS row_hash "
            f"FROM {self._table}{self._where(blocks)}) AS hashed GROUP BY 1"
        )

    def rows(self, blocks: tuple[int, int] | None, ranges: Sequence[int]) -> str:
        """(hash of the key, hash of the row, texts of the key ...) of the rows in `ranges`."""
        facts = {column.name: column for column in self.facts.columns}
        texts = [text_stored(facts[column.name], column.rule) for column in self.schema.key_columns]
        chosen = f"({self._key_hash} & {self._mask}) = ANY ('{{{','.join(map(str, ranges))}}}'::int8[])"
        return (
            f"SELECT {', '.join([self._key_hash, self._row_hash, *texts])} FROM {self._table}"
            f"{self._where(blocks, chosen)}"
        )

    @property
    def _mask(self) -> int:
        return (1 << self.bits) - 1

    @property
    def _table(self) -> str:
        only = "" if self.facts.relkind == "p" else "ONLY "
        return only + quote_qualified(self.facts.schema, self.facts.name)

    def _where(self, blocks: tuple[int, int] | None, condition: str = "") -> str:
        conditions = [f"({self.row_filter})"] if self.row_filter else []
        if blocks is not None:
            first, end = blocks
            conditions.append(f"ctid >= '({first},0)'::tid")
            if end:
                conditions.append(f"ctid < '({end},0)'::tid")
        if condition:
            conditions.append(condition)
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    @property
    def _key_hash(self) -> str:
        return self._hash_of(self.schema.key_columns, as_key=True) if self.schema.key_columns else self._row_hash

    @property
    def _row_hash(self) -> str:
        return self._hash_of(self.schema.columns)

    def _hash_of(self, columns: Sequence[ColumnSchema], *, as_key: bool = False) -> str:
        facts = {column.name: column for column in self.facts.columns}
        lost = next((column.name for column in columns if column.name not in facts), None)
        if lost is not None:
            raise UnsupportedChange(f"{self.schema.qualified_name} no longer has the column {lost}")
        forms = [self._form(column, facts[column.name], as_key=as_key) for column in columns]
        return self._hash(_concat(forms))

    def _form(self, column: ColumnSchema, facts: ColumnFacts, *, as_key: bool) -> str:
        name = quote_identifier(column.name)
        lake = column.lake
        if is_hashed(lake):
            return self._hash(text_stored(facts, column.rule))
        if lake.is_array:
            kind, _ = _SENDS[lake.element]
            array = f"{name}::pg_catalog.{kind}[]"
            sent = f"pg_catalog.array_send(pg_catalog.array_replace({array}, 'NaN'::{kind}, 'NaN'::{kind}))"
            # The flag for nulls may be set in an array without any: a slice keeps that of what it was cut from.
            sent = f"pg_catalog.overlay({sent}, ''::pg_catalog.bytea, 5, 4)"
            return (
                f"CASE WHEN pg_catalog.cardinality({array}) = 0 OR (pg_catalog.array_ndims({array}) = 1 "
                f"AND pg_catalog.array_lower({array}, 1) = 1) THEN pg_catalog.encode({sent}, 'hex') "
                f"ELSE {text_sent(facts)} END"
            )
        if lake.sql in FLOATS:
            kind, send = _SENDS[lake.sql]
            value = f"({name}::pg_catalog.{kind}{' + 0::' + kind if as_key else ''})"
            return f"CASE WHEN {value} = 'NaN'::{kind} THEN 'NaN' ELSE pg_catalog.encode({send}({value}), 'hex') END"
        return name

    def _hash(self, text: str) -> str:
        if self.as_hex:
            text = f"pg_catalog.encode(pg_catalog.convert_to({text}, 'UTF8'), 'hex')"
        return f'pg_catalog.hashtextextended(({text}) COLLATE pg_catalog."C", {self.seed}::int8)'


def probe(seed: int) -> str:
    """The server's hashes of the texts that its parameter lists, in their order."""
    return (
        f'SELECT pg_catalog.hashtextextended(text COLLATE pg_catalog."C", {seed}::int8) '
        "FROM pg_catalog.unnest(%s::text[]) WITH ORDINALITY AS probe (text, place) ORDER BY place"
    )


def _concat(forms: Sequence[str]) -> str:
    """concat prints each value with its type's output function, and a null as nothing."""
    if not forms:
        return "''"
    groups = [forms[at : at + _MOST_ARGUMENTS] for at in range(0, len(forms), _MOST_ARGUMENTS)]
    separator = f", '{SEPARATOR}', "
    joined = [f"pg_catalog.concat({separator.join(group)})" for group in groups]
    return joined[0] if len(joined) == 1 else _concat(joined)
