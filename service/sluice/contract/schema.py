"""The shape of one table in one schema version, as the manifest keeps it and both sides read it.

Immutable. Column identity is `attnum`: a rename keeps it, a drop and re-add does not.
"""

from dataclasses import dataclass

from sluice.contract.types import LakeType


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """One published column.

    `attnum` is 0 when the catalog no longer knew the column while the stream still carried it.
    `type_name` is PostgreSQL's own spelling (`format_type`), for people. `key` says that the column
    belongs to the table's merge key, `identity` that the server sends it in old rows. `missing` is
    the text of the constant default that rows older than the column have (attmissingval), None when
    those rows hold NULL. `binary_form` names the reader of its binary form, empty where there is none.
    """

    name: str
    attnum: int
    type_oid: int
    typmod: int
    type_name: str
    lake: LakeType
    key: bool = False
    identity: bool = False
    missing: str | None = None
    binary_form: str = ""


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table's columns in wire order (attnum order of the published columns), and how its rows are
    told apart.

    `replica_identity` is pg_class.relreplident (`d`, `n`, `f`, `i`). `key` columns are the primary
    key or the identity index; a table without any key has none: with identity full it is mirrored
    by whole rows, otherwise it is an append-only changelog. `version` counts from 1 within a table
    id.
    """

    table_id: str
    version: int
    schema_name: str
    table_name: str
    replica_identity: str
    columns: tuple[ColumnSchema, ...]

    @property
    def key_columns(self) -> tuple[ColumnSchema, ...]:
        return tuple(column for column in self.columns if column.key)

    @property
    def identity_columns(self) -> tuple[ColumnSchema, ...]:
        return tuple(column for column in self.columns if column.identity)

    @property
    def qualified_name(self) -> str:
        return f"{self.schema_name}.{self.table_name}"

    def column(self, name: str) -> ColumnSchema | None:
        return next((column for column in self.columns if column.name == name), None)
