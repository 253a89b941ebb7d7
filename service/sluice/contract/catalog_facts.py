"""What the catalog says of a table, as plain values: what the rules decide by."""

import hashlib
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """One live column.

    `base_type_oid` and `base_typmod` see through domains of any depth. `holds_names`: a value's text has, or may
    have, the name of another object. `spelled_twice`: values that differ to the server may have one text, because
    their type rounds them when it prints them or the database's encoding has several codes for some characters of
    UTF-8. `output_function` is the quoted name of the function whose text the stream sends. `generated` is `s`, `v`
    or empty. `missing` is the text that rows older than the column read as (attmissingval); None when they read NULL.
    `xmin` changes whenever the column's definition does. `selectable`: the role that looks may read it.
    `in_primary_key`: of one that is not deferrable; within a transaction, rows may share a value of any other.
    `not_null`: no row has a NULL; of a table that is identified by an index, not even one from before a constraint
    that is NOT VALID.
    """

    name: str
    attnum: int
    type_oid: int
    typmod: int
    base_type_oid: int
    base_typmod: int
    type_name: str
    holds_names: bool
    spelled_twice: bool
    output_function: str
    in_primary_key: bool
    in_identity: bool
    not_null: bool
    generated: str
    has_default: bool
    missing: str | None
    xmin: int
    storable_out_of_line: bool
    selectable: bool

    @property
    def is_enum(self) -> bool:
        """Also of a domain over one: it has its base type's output function."""
        return self.output_function == "pg_catalog.enum_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFacts:
    """A leaf below a partitioned table.

    `levels` has a name for each step from the leaf up to the table, another one after every ATTACH.
    `attached` has those of them that the catalog does not prove to have been made as partitions,
    and empty. A relation begins in a file of its own number: any other `relfilenode` is a rewrite
    or a TRUNCATE. `missing` names the columns that rows older than them read a value in. `version`
    is another one whenever its row of pg_class is written anew, and `settings` when that was for
    what replication does not depend on: rights, owner, options, triggers, name, columns.
    """

    oid: int
    schema: str
    name: str
    relkind: str
    relpersistence: str
    replica_identity: str
    relfilenode: int
    identity_columns: tuple[str, ...]
    levels: tuple[str, ...]
    attached: tuple[str, ...]
    missing: tuple[str, ...]
    version: str
    settings: str

    @property
    def in_first_storage(self) -> bool:
        return self.relfilenode in (0, self.oid)


def storage_of(leaves: Iterable[ChildFacts]) -> int:
    """One number for the storage of all leaves: 6 bytes of a hash, never 0."""
    spelled = ",".join(f"{leaf.oid}:{leaf.relfilenode}" for leaf in sorted(leaves, key=lambda leaf: leaf.oid))
    return int.from_bytes(hashlib.sha256(spelled.encode()).digest()[:6], "big") or 1


@dataclass(frozen=True, slots=True)
class TypeDetail:
    """What a value's text depends on beside its type: an enum label, or the attributes of a
    composite type.

    `version` is another one after every change, even one that was taken back. `original`: it is as
    its type was created.
    """

    key: str
    spelling: str
    version: str
    original: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """One table.

    `role` is who looks; whether it has USAGE on the schema, and whether row level security holds
    for it, is what `schema_usable` and `policies_apply` say. `publication` is the one that was
    asked about, or empty. `relfilenode` changes with every rewrite and TRUNCATE; for a partitioned
    table it is a number made from its leaves'. `published_columns` is None when all columns that
    can be published are (or when no publication was asked about); `has_column_list` tells a list
    from a rule. `row_filter` names the filter in force, None without one; another one has another
    name. `publishes` has a letter for each kind of change that the publication sends (i u d t), `r`
    for publishing under the root, `g` for generated columns.
    `memberships` names each thing that puts the table into the publication (an entry, a whole
    schema, all tables), another name each time it is put there anew; `publication_altered` differs
    after every ALTER PUBLICATION that is about the publication itself and not about its tables.
    `removals` counts what left publications so far, where that could have concerned the table and
    left no trace; -1 where it could not. `removals_known` is the count from which on each removal was
    seen to be of something else.
    `former_leaves` has a name for each table that may have been a partition of this one and is none now, another
    one after every DETACH.
    `ancestors` are the tables above a partition, as schema.table.
    `attributes` counts the columns that the table ever had. `primary_key` is another number after
    every DROP and ADD of it, 0 without one. `toast` is another number after every rewrite, and the
    same one after TRUNCATE; 0 for tables without large columns.
    """

    oid: int
    schema: str
    name: str
    relkind: str
    relpersistence: str
    replica_identity: str
    relfilenode: int
    role: str
    schema_usable: bool
    policies_apply: bool
    is_partition: bool
    columns: tuple[ColumnFacts, ...]
    publication: str
    row_filter: str | None
    published_columns: tuple[str, ...] | None
    has_column_list: bool
    publishes: str
    memberships: tuple[str, ...]
    publication_altered: str
    removals: int
    estimated_rows: int
    children: tuple[ChildFacts, ...]
    former_leaves: tuple[str, ...]
    type_details: tuple[TypeDetail, ...]
    attributes: int
    primary_key: int
    toast: int
    ancestors: tuple[str, ...] = ()
    removals_known: int = field(default=sys.maxsize, compare=False)

    @property
    def has_primary_key(self) -> bool:
        """Whether there is one that tells rows apart at every moment."""
        return any(column.in_primary_key for column in self.columns)

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def published(self) -> bool:
        """Whether the publication that was asked about has the table."""
        return bool(self.memberships)

    @property
    def rows_are_found_by(self) -> tuple[ColumnFacts, ...]:
        """The columns that identify the rows of the lake table."""
        if self.replica_identity != "f":
            return tuple(column for column in self.columns if column.in_identity)
        return tuple(column for column in self.columns if column.in_primary_key) or self.sent_columns

    @property
    def selectable(self) -> bool:
        """Whether the role that looks may read everything that is sent."""
        return all(column.selectable for column in self.sent_columns)

    @property
    def sent_columns(self) -> tuple[ColumnFacts, ...]:
        """Those that the stream carries."""
        names = self.published_columns
        return tuple(
            column for column in self.columns if (column.name in names if names is not None else not column.generated)
        )

    def with_leaves(self, oids: Collection[int]) -> "TableFacts":
        """This partitioned table, with these of its leaves alone."""
        children = tuple(leaf for leaf in self.children if leaf.oid in oids)
        return replace(self, children=children, relfilenode=storage_of(children))

    def differs_in_identity(self, leaf: ChildFacts) -> bool:
        """Whether the leaf's old rows have other columns than those of this table."""
        own = (
            sorted(column.name for column in self.columns if column.in_identity) if self.replica_identity != "f" else []
        )
        return (leaf.replica_identity, sorted(leaf.identity_columns)) != (self.replica_identity, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationFacts:
    """Which kinds of change a publication sends; whether partitions go under their root's name, and
    whether it has all tables without naming any.
    """

    name: str
    insert: bool
    update: bool
    delete: bool
    truncate: bool
    via_root: bool
    all_tables: bool


@dataclass(frozen=True, slots=True)
class Visible:
    """Which transactions that have committed a look at the catalog sees: none that was `running` when it began, nor
    one that began later, which has the number `beyond` or a greater one. A commit is sent once its record is on disk,
    and seen by other sessions when those who commit have waited for a standby.
    """

    beyond: int
    running: frozenset[int] = frozenset()

    def sees(self, xid: int) -> bool:
        """`xid` has the 32 bits of the number that the stream has."""
        age = (self.beyond - xid) % 2**32  # more than half of all: not before `beyond`
        return 0 < age < 2**31 and self.beyond - age not in self.running
