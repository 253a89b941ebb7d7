"""The shape of one table in one schema version, as the manifest keeps it and both sides read it.

Immutable. Column identity is `attnum`: a rename keeps it, a drop and re-add does not.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from sluice.contract.types import LakeType


class RuleKind(StrEnum):
    """What a column rule does before anything is stored: `exclude` leaves the column out, `mask` stores a constant
    text instead of each value that is not NULL, `truncate` the first characters of its text, `hash` the keyed
    hash (HMAC-SHA-256) of its text.
    """

    EXCLUDE = "exclude"
    MASK = "mask"
    TRUNCATE = "truncate"
    HASH = "hash"


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """What happens to the values of a column. `listed_as` is the name by which the configuration asks for
    it, empty where it is what the table's `new_columns` says of every column that is added. `mask` is the
    constant, `length` how many characters are left, `key_id` names the key of a hash.
    """

    kind: RuleKind
    listed_as: str = ""
    mask: str = ""
    length: int = 0
    key_id: str = ""

    @property
    def text(self) -> str:
        """For people."""
        if self.kind is RuleKind.TRUNCATE:
            return f"truncate to {self.length}"
        if self.kind is RuleKind.HASH:
            return f"hash with key {self.key_id}"
        return f"mask {self.mask!r}" if self.kind is RuleKind.MASK else self.kind.value

    def does_as(self, other: "ColumnRule | None") -> bool:
        """Whether both make the same of every value."""
        return other is not None and replace(self, listed_as="") == replace(other, listed_as="")


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """One published column.

    `attnum` is 0 when the catalog no longer knew the column while the stream still carried it.
    A `transient` one was added and dropped again before the catalog could be asked what older rows
    hold in it: it has come and gone on the source, and the lake does not get it. Nor does it get an
    `ignored` one, which was added while the table's contract was to leave such columns out.
    `type_name` is PostgreSQL's own spelling (`format_type`), for people. `key` says that the column
    belongs to the table's merge key, `identity` that the server sends it in old rows. `missing` is
    the text of the constant default that rows older than the column have (attmissingval), None when
    those rows hold NULL. `binary_form` names the reader of its binary form, empty where there is none.
    `rule` is what was done to its values before they were stored.
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
    transient: bool = False
    ignored: bool = False
    rule: ColumnRule | None = None


@dataclass(frozen=True, slots=True)
class ExcludedColumn:
    """A column that the server sends and that is stored nowhere: `place` is its number among those that are
    sent, from 0. Of its `column` no value is kept either, such as a default.
    """

    place: int
    column: ColumnSchema


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table's columns in wire order (attnum order of the published columns), and what
    identifies its rows. Columns that are `excluded` are in no row that is stored.

    `replica_identity` is pg_class.relreplident (`d`, `n`, `f`, `i`). `key` columns are the primary
    key or the identity index; a table without any key has none, and is mirrored by whole rows: with
    any identity but full PostgreSQL only lets rows be inserted and all be truncated. `version` counts
    from 1 within a table id. A column with an attnum up to `attributes` that is not in `columns`
    existed before this version: it was dropped, was not published or is excluded. `rules_met` are the names
    in the configuration's rules that a column had, now or in an earlier version; `rules_of` is the name of the
    table (schema.table) for which the rules were configured.
    """

    table_id: str
    version: int
    schema_name: str
    table_name: str
    replica_identity: str
    columns: tuple[ColumnSchema, ...]
    attributes: int = 0
    excluded: tuple[ExcludedColumn, ...] = ()
    rules_met: tuple[str, ...] = ()
    rules_of: str = ""

    @property
    def sent(self) -> tuple[ColumnSchema, ...]:
        """What the rows of the stream have: `columns` and those that are excluded, in wire order."""
        sent = list(self.columns)
        for one in self.excluded:
            sent.insert(one.place, one.column)
        return tuple(sent)

    @property
    def left_out(self) -> tuple[ColumnSchema, ...]:
        """Columns that the lake lacks though no rule names them: because they were added later."""
        return (*self.ignored_columns, *(one.column for one in self.excluded if not _is_listed(one.column)))

    @property
    def carried(self) -> "TableSchema":
        """Without the columns that the lake does not get."""
        return self._without([column for column in self.columns if column.transient or column.ignored])

    @property
    def ignored_columns(self) -> tuple[ColumnSchema, ...]:
        return tuple(column for column in self.columns if column.ignored)

    @property
    def asked_for(self) -> "TableSchema":
        """Without the columns that are ignored."""
        return self._without(self.ignored_columns)

    def _without(self, columns: Collection[ColumnSchema]) -> "TableSchema":
        if not columns:
            return self
        return replace(self, columns=tuple(column for column in self.columns if column not in columns))

    @property
    def key_columns(self) -> tuple[ColumnSchema, ...]:
        return tuple(column for column in self.columns if column.key)

    @property
    def is_keyed(self) -> bool:
        """Whether each change names its row by the key: rows can then be compared and read again by it."""
        return bool(self.key_columns) and all(column.identity for column in self.key_columns)

    @property
    def identity_columns(self) -> tuple[ColumnSchema, ...]:
        return tuple(column for column in self.columns if column.identity)

    @property
    def qualified_name(self) -> str:
        return f"{self.schema_name}.{self.table_name}"

    def named(self, schema_name: str, table_name: str) -> "TableSchema":
        """The same shape under another name."""
        return replace(self, schema_name=schema_name, table_name=table_name)

    def column(self, name: str) -> ColumnSchema | None:
        return next((column for column in self.columns if column.name == name), None)


def _is_listed(column: ColumnSchema) -> bool:
    return column.rule is not None and bool(column.rule.listed_as)
