"""Tables of the model as its catalog has them, and the facts that a look at that catalog gives.

A table is a value that never changes: a command makes another one. `rows_read_as` is how a row that is
older than a column reads in it. (PostgreSQL: pg_attribute, attmissingval; pg_class.)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.contract.catalog_facts import ColumnFacts, TableFacts

INT4, INT8, TEXT, VARCHAR = 23, 20, 25, 1043
_TYPES = {
    INT4: ("integer", "pg_catalog.int4out"),
    INT8: ("bigint", "pg_catalog.int8out"),
    TEXT: ("text", "pg_catalog.textout"),
    VARCHAR: ("character varying", "pg_catalog.varcharout"),
}
PUBLICATION = "simulated"
BLOCK = 0
"""Where a row has the number of the block in which its version lies."""
KEY = 1
"""The attnum of the primary key of every table."""

Row = Mapping[int, str | int | None]
"""Values by attnum. Never changed in place."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    attnum: int
    type_oid: int
    typmod: int = -1
    xmin: int = 0
    missing: str | None = None
    has_default: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One state of a table. `membership` is empty while the publication does not have it."""

    oid: int
    name: str
    columns: tuple[Column, ...]
    attributes: int
    identity: str = "d"
    relfilenode: int = 0
    toast: int = 0
    primary_key: int = 1
    membership: str = ""
    facts_seen: dict[str, TableFacts] = field(default_factory=dict)
    """The facts, once somebody asked: the same object each time, as the product's looks keep it."""

    @property
    def facts(self) -> TableFacts:
        if "all" not in self.facts_seen:
            self.facts_seen["all"] = self._facts()
        return self.facts_seen["all"]

    def identifies(self, column: Column) -> bool:
        """Whether the server flags the column as one of old rows."""
        return self.identity == "f" or (self.identity == "d" and column.attnum == KEY)

    def read(self, row: Row) -> dict[str, str | None]:
        """The values of a row, by the names of the columns."""
        return {column.name: value_of(row, column) for column in self.columns}

    def _facts(self) -> TableFacts:
        return TableFacts(
            oid=self.oid,
            schema="public",
            name=self.name,
            relkind="r",
            relpersistence="p",
            replica_identity=self.identity,
            relfilenode=self.relfilenode,
            role="sluice",
            schema_usable=True,
            policies_apply=False,
            is_partition=False,
            columns=tuple(self._column(column) for column in self.columns),
            publication=PUBLICATION,
            row_filter=None,
            published_columns=None,
            has_column_list=False,
            publishes="iudt",
            memberships=(self.membership,) if self.membership else (),
            publication_altered="1",
            removals=-1,
            estimated_rows=0,
            children=(),
            former_leaves=(),
            type_details=(),
            attributes=self.attributes,
            primary_key=self.primary_key,
            toast=self.toast,
        )

    def _column(self, column: Column) -> ColumnFacts:
        name, output = _TYPES[column.type_oid]
        return ColumnFacts(
            name=column.name,
            attnum=column.attnum,
            type_oid=column.type_oid,
            typmod=column.typmod,
            base_type_oid=column.type_oid,
            base_typmod=column.typmod,
            type_name=name,
            holds_names=False,
            spelled_twice=False,
            output_function=output,
            in_primary_key=column.attnum == KEY,
            in_identity=self.identifies(column),
            not_null=column.attnum == KEY,
            generated="",
            has_default=column.has_default,
            missing=column.missing,
            xmin=column.xmin,
            storable_out_of_line=column.type_oid in (TEXT, VARCHAR),
            selectable=True,
        )


def value_of(row: Row, column: Column) -> str | None:
    """What the row has in the column."""
    found = row.get(column.attnum, column.missing)
    assert found is None or isinstance(found, str)
    return found
