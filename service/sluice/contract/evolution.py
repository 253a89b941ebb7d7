"""What the step between two schema versions of a table means: one owner, asked by ingest before it
writes in a new version and by the applier before it applies one. Pure.

Invariant: columns are matched by attnum and by nothing else. `steps` names every difference that
the lake can follow exactly, and refuses any other by name: then rows already in the lake would no
longer mean what the source means. Changes of two versions that are not `identified_alike` are never
folded together: those of the older one are all in the lake before the first of the newer one. What
happened to old rows without an event shows in the catalog only: `unsent` says so. (PostgreSQL: ALTER
TABLE. Delta: Update table schema, Type widening.)
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sluice.contract import envelope
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.types import decimal_parts, declared_scale
from sluice.errors import UnsupportedChange


@dataclass(frozen=True, slots=True)
class Added:
    """A column that older rows read as its `missing`."""

    column: ColumnSchema


@dataclass(frozen=True, slots=True)
class Dropped:
    """A column, as it was."""

    column: ColumnSchema


@dataclass(frozen=True, slots=True)
class Renamed:
    """The same column under the name that `column` has."""

    column: ColumnSchema
    before: str


@dataclass(frozen=True, slots=True)
class Retyped:
    """The same column in the type that `column` has, which holds every value of the one `before`.
    The lake's type may be the same.
    """

    column: ColumnSchema
    before: ColumnSchema


@dataclass(frozen=True, slots=True)
class Identified:
    """Old rows are sent with other columns than before."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """Rows are identified by the `columns` from here on, without any by all of their values."""

    columns: tuple[ColumnSchema, ...]


Step = Added | Dropped | Renamed | Retyped | Identified | Keyed
KINDS: dict[type[Step], str] = {
    Added: "added_columns",
    Dropped: "dropped_columns",
    Renamed: "renamed_columns",
    Retyped: "changed_types",
    Identified: "identity",
    Keyed: "key",
}
"""What metrics call the steps."""
IGNORED = "ignored_columns"
"""What they call a change of columns that the lake does not get."""


def steps(old: TableSchema, new: TableSchema) -> tuple[Step, ...]:
    """Everything that leads from `old` to `new`, a version of the same table that may lie any number
    of versions further on. Raises UnsupportedChange.
    """
    where = f"{new.qualified_name} in schema version {new.version}"
    refuse_alike(new)
    before, after = _by_attnum(old, where), _by_attnum(new, where)
    _refuse_values_not_held(old, new, where)
    found: list[Step] = [Dropped(column) for attnum, column in before.items() if attnum not in after]
    for attnum, column in after.items():
        earlier = before.get(attnum)
        if earlier is None:
            if attnum <= old.attributes:
                raise UnsupportedChange(
                    f"{where}: column {column.name} was there before it was published: older rows hold values in "
                    "it that were not sent"
                )
            found.append(Added(column))
            continue
        if earlier.name != column.name:
            found.append(Renamed(column, earlier.name))
        if _type(earlier) != _type(column):
            if not widens(earlier, column):
                raise UnsupportedChange(
                    f"{where}: column {column.name} changed its type from {earlier.type_name} to {column.type_name}"
                )
            found.append(Retyped(column, earlier))
    if _identity(old, after) != _identity(new, after):
        found.append(Identified())
    if keys_of(old) != keys_of(new):
        found.append(Keyed(new.key_columns))
    return tuple(found)


def keys_of(schema: TableSchema) -> list[int]:
    """The attnums of the columns by which rows are identified."""
    return [column.attnum for column in schema.key_columns]


def refuse_alike(schema: TableSchema) -> None:
    """Delta compares names without regard to case."""
    if len({envelope.folded(column.name) for column in schema.columns}) != len(schema.columns):
        raise UnsupportedChange(
            f"{schema.qualified_name}: two columns differ by case only, which Delta does not support"
        )


def _by_attnum(schema: TableSchema, where: str) -> dict[int, ColumnSchema]:
    columns = {column.attnum: column for column in schema.columns}
    if len(columns) != len(schema.columns) or 0 in columns:
        raise UnsupportedChange(f"{where}: the source no longer had its columns, so they cannot be matched")
    return columns


def sent_identity(schema: TableSchema) -> tuple[str, list[int]]:
    """What the wire says of old rows: the replica identity, and by attnum what they have (of whole rows nothing)."""
    if schema.replica_identity == "f":
        return "f", []
    return schema.replica_identity, [column.attnum for column in schema.identity_columns]


def identified_alike(old: TableSchema, new: TableSchema) -> bool:
    """Whether changes of both versions name their rows in one way, so that they can be folded together."""
    whole = (old.replica_identity == "f", new.replica_identity == "f")
    return keys_of(old) == keys_of(new) and (bool(new.key_columns) or whole[0] == whole[1])


def identified_since(schemas: Mapping[int, TableSchema], version: int) -> int:
    """The first of the versions up to `version` from which on all are `identified_alike`."""
    while version - 1 in schemas and identified_alike(schemas[version - 1], schemas[version]):
        version -= 1
    return version


def drops_old_values(old: TableSchema, new: TableSchema) -> bool:
    """Whether another identity takes columns from the old rows that a changelog keeps. A column that goes
    is gone from them as well; one of a key that changes with it says which rows they were.
    """
    sent, there = ({column.attnum for column in columns} for columns in (new.identity_columns, new.columns))
    lost = {column.attnum for column in old.identity_columns} - sent
    return bool(lost & there) or (bool(lost) and keys_of(old) != keys_of(new))


def _refuse_values_not_held(old: TableSchema, new: TableSchema, where: str) -> None:
    """Rows of the lake must have the values by which they are identified after the step."""
    held = {column.attnum for column in old.columns if not column.transient}
    if keys_of(old) == keys_of(new):
        return
    for column in new.key_columns:
        if column.attnum not in held:
            raise UnsupportedChange(
                f"{where}: the key changed: older rows hold values of its column {column.name} that were not sent"
            )


def _identity(schema: TableSchema, kept: dict[int, ColumnSchema]) -> tuple[str, list[int]]:
    """Without columns that go: those say nothing of how old rows are sent."""
    replica_identity, attnums = sent_identity(schema)
    return replica_identity, [attnum for attnum in attnums if attnum in kept]


def _type(column: ColumnSchema) -> tuple[int, int, object]:
    return column.type_oid, column.typmod, column.lake


# Types: every value of the one is the same value of the other.

_TEXT, _VARCHAR, _NUMERIC, _FLOAT4, _FLOAT8, _DATE, _TIMESTAMP = 25, 1043, 1700, 700, 701, 1082, 1114
_TEXTS = ({_TEXT, _VARCHAR}, {1009, 1015})
_WITH_PRECISION = {1083, _TIMESTAMP, 1184, 1266}
_REWRITTEN = {(21, 23), (21, 20), (23, 20), (_FLOAT4, _FLOAT8), (_DATE, _TIMESTAMP)}
"""PostgreSQL writes the table anew, and its own cast changes no value."""
_OTHER_TEXT = {(_FLOAT4, _FLOAT8), (_DATE, _TIMESTAMP)}
"""Of them, those that print the same value otherwise: a column rule makes something else of it."""
_UNBOUNDED = -1


def widens(old: ColumnSchema, new: ColumnSchema) -> bool:
    """Whether every value of `old` is the same value of `new`, in the lake too. Types are compared
    by what they are: that the server could keep the bytes (int and oid, cidr and inet) does not
    keep their meaning.
    """
    if old.rule is not None and (old.type_oid, new.type_oid) in _OTHER_TEXT:
        return False
    if (old.type_oid, new.type_oid) in _REWRITTEN:
        return True
    if old.lake.family != new.lake.family or old.lake.special != new.lake.special:
        return False
    grows = new.typmod == _UNBOUNDED or (old.typmod not in (_UNBOUNDED, new.typmod) and new.typmod > old.typmod)
    grows = grows or new.typmod == old.typmod
    if any({old.type_oid, new.type_oid} <= kinds for kinds in _TEXTS):
        return grows
    if old.type_oid != new.type_oid:
        return False
    if old.type_oid in _WITH_PRECISION:
        return grows
    return old.type_oid == _NUMERIC and _more_digits(old, new)


def is_rewritten(old: ColumnSchema, new: ColumnSchema) -> bool:
    """Whether PostgreSQL writes the table anew for a type that `widens`."""
    kinds = (old.type_oid, new.type_oid)
    return kinds in _REWRITTEN or (
        kinds == (_NUMERIC, _NUMERIC) and declared_scale(old.typmod) != declared_scale(new.typmod)
    )


def _more_digits(old: ColumnSchema, new: ColumnSchema) -> bool:
    """More on either side of the point, and fewer on none. A negative scale rounds, though the lake's
    decimal has the digits.
    """
    before, after = decimal_parts(old.lake.sql), decimal_parts(new.lake.sql)
    if before is None or after is None or declared_scale(old.typmod) > declared_scale(new.typmod):
        return False
    return before[1] <= after[1] and before[0] - before[1] <= after[0] - after[1]


def text_after(step: Retyped, text: str) -> str:
    """The text of a value of the column before `step` as PostgreSQL writes the value after it."""
    if (step.before.type_oid, step.column.type_oid) == (_FLOAT4, _FLOAT8):
        return repr(struct.unpack("f", struct.pack("f", float(text)))[0])
    if (step.before.type_oid, step.column.type_oid) != (_DATE, _TIMESTAMP) or text.endswith("infinity"):
        return text
    day, era, _ = text.partition(" BC")
    return f"{day} 00:00:00{era}"


# What the catalog shows and the stream does not.


def unsent(found: Iterable[Step], facts: TableFacts | None, *, old_relfilenode: int, casts_only: bool = False) -> str:
    """Why rows that are older than the steps hold other values than were sent, empty when they hold
    what `missing` says and what was sent.

    `old_relfilenode` is the table's storage when the version before came into force (0: not
    known): whatever came with a rewrite may have computed values, which nothing announces.
    `casts_only`: somebody who knows says that a column that got a wider type was cast and not computed.
    """
    rewritten = facts is None or old_relfilenode not in (0, facts.relfilenode)
    for step in found:
        reason = ""
        if isinstance(step, Added) and not step.column.transient:
            reason = _unsent_default(step.column, facts, old_relfilenode)
        elif isinstance(step, Retyped) and rewritten and not casts_only:
            reason = (
                f"the table was rewritten when column {step.column.name} changed its type from "
                f"{step.before.type_name} to {step.column.type_name}: older rows may hold other values than were sent"
            )
        if reason:
            return reason
    return ""


def _unsent_default(column: ColumnSchema, facts: TableFacts | None, old_relfilenode: int) -> str:
    if column.missing is not None:
        return ""
    now = next((item for item in facts.columns if item.attnum == column.attnum), None) if facts else None
    if facts is None or now is None:
        return f"column {column.name} was added and the catalog no longer says what older rows hold in it"
    in_leaves = facts.relkind == "p" and (
        now.has_default or bool(now.generated) or any(column.name in leaf.missing for leaf in facts.children)
    )
    if in_leaves or (facts.relkind != "p" and old_relfilenode not in (0, facts.relfilenode)):
        return (
            f"the table was rewritten when column {column.name} was added: older rows hold values in it "
            "that the stream does not carry"
        )
    return ""
