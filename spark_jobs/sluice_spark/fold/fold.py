"""Reducing the changes of one window to one net change per row of the lake.

Owns the meaning of a window: given rows in (commit LSN, ordinal) order it yields, for each row that
the lake had at the start (its *origin key*) and for each new row, its state at the end. Chains,
swaps and re-used keys are exact because rows are followed by where they came from. A value that was
not sent stays a third state: it is found in an earlier change of the same row, or kept from the
lake's row, and never becomes NULL. Must not touch Spark, storage or the clock. (PostgreSQL: Logical
Replication Message Formats, TupleData.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.fold.chains import Events, Outcome, follow_by_key, follow_by_row
from sluice_spark.fold.row_identity import OLD_WHOLE, Claims, Numbers, number_rows, special_rows, special_texts, whole
from sluice_spark.fold.settlement import Settlement, Sweep

KEY = "_sluice_key_"
KEY_SPECIAL = "_sluice_key_special_"
DELETED = "_sluice_deleted"
MATCH = "_sluice_match"
KEEP = "_sluice_keep_"


@dataclass(frozen=True, slots=True)
class Folded:
    """One row per net change.

    `rows` holds the table's columns, the metadata columns LSN, TS and SPECIAL, those of the envelope that were
    asked for, and unless `append` is true the origin key (KEY n, with KEY_SPECIAL n where the type has such
    values), DELETED, MATCH (false: the row is new although its key is in use at the start) and one KEEP attnum
    per column in `kept` (true: the lake's value stays). `replaces` says that nothing of the lake's rows
    remains (TRUNCATE). `append` says that every row is new.

    With a `settlement` the rows are what that one asks for, with the key that each looks for and MATCH, and `sweep`
    is what a TRUNCATE does to the rows of other keys.
    """

    rows: pa.Table
    kept: tuple[ColumnSchema, ...] = ()
    append: bool = False
    replaces: bool = False
    settlement: Settlement | None = None
    sweep: Sweep | None = None


def in_order(rows: pa.Table) -> pa.Table:
    """`rows` by (commit LSN, ordinal). Raises UnsupportedChange when two rows claim one place."""
    lsn = rows[envelope.LSN].to_numpy()
    ordinal = rows[envelope.ORDINAL].to_numpy()
    order = np.lexsort((ordinal, lsn))
    lsn, ordinal = lsn[order], ordinal[order]
    if np.any((lsn[1:] == lsn[:-1]) & (ordinal[1:] == ordinal[:-1])):
        raise UnsupportedChange("two changes of one transaction have the same position")
    return rows if np.array_equal(order, np.arange(len(order))) else rows.take(pa.array(order))


def after_truncate(rows: pa.Table) -> tuple[pa.Table, bool]:
    """What follows the last TRUNCATE, and whether there was one."""
    positions = np.flatnonzero(pc.equal(rows[envelope.OP], envelope.OP_TRUNCATE).to_numpy())
    return (rows.slice(int(positions[-1]) + 1), True) if len(positions) else (rows, False)


def fold(
    rows: pa.Table,
    schema: TableSchema,
    *,
    keyed: bool = False,
    removals_sent: bool = True,
    from_nothing: bool = False,
    carried: Sequence[str] = (),
) -> Folded:
    """The net changes that `rows` make to a table with a key. Raises UnsupportedChange for an
    impossible history.

    `keyed` asks for the form with origin keys even where all rows are new, to go with others that
    need it. Without `removals_sent` a row may have been removed without a change that
    says so: a row that takes its key then takes its place. With `from_nothing` nothing of the lake's
    rows remains, as after a TRUNCATE. `carried` are further columns of the envelope, which a row has from its last
    change.
    """
    rows, truncated = after_truncate(in_order(rows))
    replaces = truncated or from_nothing
    operation = operations(rows)
    flags = unchanged_flags(rows, schema)
    if removals_sent and (replaces or not keyed) and not flags and bool(np.all(operation == ord("i"))):
        return Folded(_payload(rows, schema, carried), append=not replaces, replaces=replaces)
    keys = Keys(rows, schema, operation)
    outcome = _outcome(rows, schema, keys, flags, removals_sent=removals_sent)
    if replaces:
        outcome = outcome.where(~outcome.deleted)
    sources = {attnum: outcome.sources[attnum] for attnum in flags}
    kept = tuple(
        column
        for column in schema.columns
        if column.attnum in flags and bool(np.any(~outcome.deleted & (sources[column.attnum] < 0)))
    )
    if kept and replaces:
        raise UnsupportedChange(
            f"column {kept[0].name!r} of {schema.qualified_name}: a value was not sent and no earlier "
            "row of the table is left"
        )
    table = _gathered(rows, schema, outcome, sources, carried)
    if replaces:
        return Folded(table, replaces=True)
    for name, array in keys.origin(outcome.origin):
        table = table.append_column(name, array)
    table = table.append_column(DELETED, pa.array(outcome.deleted)).append_column(MATCH, pa.array(outcome.match))
    for column in kept:
        table = table.append_column(f"{KEEP}{column.attnum}", pa.array(~outcome.deleted & (sources[column.attnum] < 0)))
    return Folded(table, kept=kept)


def unchanged_flags(rows: pa.Table, schema: TableSchema) -> dict[int, Claims]:
    """By attnum: which rows came without that column's value. Only columns that miss at least one."""
    lists = whole(rows[envelope.UNCHANGED])
    attnums = pc.list_flatten(lists).to_numpy(zero_copy_only=False)
    if not len(attnums):
        return {}
    parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    known = [column.attnum for column in schema.columns]
    flags: dict[int, Claims] = {}
    for attnum in np.unique(attnums):
        if known.count(int(attnum)) != 1:
            raise UnsupportedChange(
                f"{schema.qualified_name}: a value was not sent for attribute {attnum}, which version "
                f"{schema.version} does not have"
            )
        flags[int(attnum)] = np.zeros(len(rows), dtype=bool)
        flags[int(attnum)][parents[attnums == attnum]] = True
    return flags


def operations(rows: pa.Table) -> Numbers:
    """Each change's operation as a character code. Raises UnsupportedChange for one that is none of
    i, u, d.
    """
    codes = np.zeros(len(rows), dtype=np.int64)
    for operation in (envelope.OP_INSERT, envelope.OP_UPDATE, envelope.OP_DELETE):
        codes[pc.equal(rows[envelope.OP], operation).to_numpy()] = ord(operation)
    if bool(np.any(codes == 0)):
        raise UnsupportedChange("a segment holds an operation that is none of i, u, d, t")
    return codes


class Keys:
    """Key numbers: the key each change acts on, and the key its row has afterwards."""

    def __init__(self, rows: pa.Table, schema: TableSchema, operation: Numbers) -> None:
        self.operation = operation
        count = len(rows)
        old = (
            rows[envelope.OLD]
            if envelope.OLD in rows.column_names
            else pa.chunked_array([pa.nulls(count, pa.struct([]))])
        )
        has_old = old.is_valid().to_numpy() & (operation != ord("i"))
        if bool(np.any((operation == ord("d")) & ~has_old)):
            raise UnsupportedChange(f"{schema.qualified_name}: a delete came without the old row's key")
        after, before = np.flatnonzero(operation != ord("d")), np.flatnonzero(has_old)
        self.columns: list[tuple[str, pa.Array]] = []
        marked, old_marked = special_rows(rows[envelope.SPECIAL]), special_rows(rows[envelope.OLD_SPECIAL])
        for position, column in enumerate(schema.key_columns):
            if len(before) and not column.identity:
                raise UnsupportedChange(
                    f"{schema.qualified_name}: key column {column.name!r} is not part of the replica identity"
                )
            parts = [whole(rows[column.name]).take(pa.array(after))]
            if len(before):
                parts.append(whole(pc.struct_field(old, [column.name])).take(pa.array(before)))
            values = pa.concat_arrays(parts)
            known = values.is_valid()
            self.columns.append((f"{KEY}{position}", values))
            if column.lake.special:
                texts = pa.concat_arrays(
                    [
                        special_texts(marked, column.name, count).take(pa.array(after)),
                        special_texts(old_marked, column.name, count).take(pa.array(before)),
                    ]
                )
                known = pc.or_(known, texts.is_valid())
                self.columns.append((f"{KEY_SPECIAL}{position}", texts))
            if not pc.all(known, min_count=0).as_py():
                raise UnsupportedChange(
                    f"{schema.qualified_name}: a change came without a value of key column {column.name!r}"
                )
        numbers = number_rows([array for _, array in self.columns], len(after) + len(before))
        self.count = int(numbers.max(initial=-1)) + 1
        self.sample = np.zeros(self.count, dtype=np.int64)
        self.sample[numbers] = np.arange(len(numbers))
        self.now = np.full(count, -1, dtype=np.int64)
        self.now[after] = numbers[: len(after)]
        self.acts_on = self.now.copy()
        self.acts_on[before] = numbers[len(after) :]

    def in_transactions(self, lsn: Numbers) -> None:
        """From now on a key of two transactions, which end at `lsn` of their changes, has two numbers."""
        acts_on, now = self.acts_on, np.where(self.now < 0, self.acts_on, self.now)
        pairs = np.stack([np.concatenate([acts_on, now]), np.concatenate([lsn, lsn])], axis=1)
        distinct, numbers = np.unique(pairs, axis=0, return_inverse=True)
        numbers = numbers.reshape(-1).astype(np.int64)
        self.count = len(distinct)
        self.acts_on = numbers[: len(lsn)]
        self.now = np.where(self.now < 0, self.now, numbers[len(lsn) :])

    def coupled(self, *, whole_rows: bool) -> Claims:
        """Changes of keys whose last change alone does not determine the state of their rows: some
        change moved a row to or away from the key.

        Where whole old rows are sent (`whole_rows`) the key's constraint may be a deferred one.
        Then a row can also be inserted with the key of a row that is removed only later, so an
        insert with a later change of its key counts too.
        """
        moved = (self.operation == ord("u")) & (self.acts_on != self.now)
        keys = np.zeros(self.count, dtype=bool)
        keys[self.acts_on[moved]] = keys[self.now[moved]] = True
        if whole_rows:
            positions = np.arange(len(self.operation))
            last = latest(self.count, self.acts_on, positions)
            keys[self.acts_on[(self.operation == ord("i")) & (last[self.acts_on] != positions)]] = True
        return keys[self.acts_on]

    def origin(self, numbers: Numbers) -> list[tuple[str, pa.Array]]:
        """The key columns for key numbers."""
        positions = pa.array(self.sample[numbers])
        return [(name, array.take(positions)) for name, array in self.columns]


def _outcome(
    rows: pa.Table, schema: TableSchema, keys: Keys, flags: dict[int, Claims], *, removals_sent: bool
) -> Outcome:
    whole_rows = schema.replica_identity == "f"
    coupled = keys.coupled(whole_rows=whole_rows)
    simple = _last_change(keys, np.flatnonzero(~coupled), flags, schema)
    positions = np.flatnonzero(coupled)
    if not len(positions):
        return simple
    events = Events(positions, keys.operation, keys.acts_on, keys.now, flags, schema.qualified_name, removals_sent)
    if whole_rows:
        is_whole = (
            whole(rows[OLD_WHOLE]).to_numpy(zero_copy_only=False)[positions]
            if OLD_WHOLE in rows.column_names
            else np.ones(len(positions), dtype=bool)
        )
        return simple.plus(follow_by_row(events, *_contents(rows, schema, positions), is_whole))
    return simple.plus(follow_by_key(events))


def _last_change(keys: Keys, positions: Numbers, flags: dict[int, Claims], schema: TableSchema) -> Outcome:
    """For keys that no row moves between: the last change decides, and values that it lacks come
    from the last one that has them.
    """
    number, operation = keys.acts_on[positions], keys.operation[positions]
    last = latest(keys.count, number, positions)
    # A value of a removed row is never a value of the next row with its key, even if the insert of
    # that row was not sent.
    begins = operation != ord("u")
    begun = latest(keys.count, number[begins], positions[begins])
    origin = np.flatnonzero(last >= 0)
    last, begun = last[origin], begun[origin]
    deleted = keys.operation[last] == ord("d")
    sources: dict[int, Numbers] = {}
    for attnum, flag in flags.items():
        sent = ~flag[positions] & (operation != ord("d"))
        source = latest(keys.count, number[sent], positions[sent])[origin]
        if bool(np.any(~deleted & (begun > source))):
            raise UnsupportedChange(
                f"{schema.qualified_name}: attribute {attnum} of an inserted row was not sent and has no earlier row"
            )
        sources[attnum] = source
    return Outcome(origin, deleted, np.ones(len(origin), dtype=bool), last, sources)


def latest(count: int, number: Numbers, positions: Numbers) -> Numbers:
    """Of each number below `count` the last of `positions`, -1 where it has none."""
    # Positions ascend, and numpy keeps the last of several assignments to one place.
    latest = np.full(count, -1, dtype=np.int64)
    latest[number] = positions
    return latest


def _contents(rows: pa.Table, schema: TableSchema, positions: Numbers) -> tuple[Numbers, Numbers]:
    """Numbers of whole rows, after and before each of `positions`, indexed like `positions`."""
    return row_numbers(rows.take(pa.array(positions)), schema)


def row_numbers(rows: pa.Table, schema: TableSchema) -> tuple[Numbers, Numbers]:
    """Numbers of the whole row after and before each change, from the columns and from OLD; equal
    numbers mean equal rows, marked values included.
    """
    count = len(rows)
    marked, old_marked = special_rows(rows[envelope.SPECIAL]), special_rows(rows[envelope.OLD_SPECIAL])
    arrays: list[pa.Array] = []
    for column in schema.columns:
        if not column.identity and schema.replica_identity == "f":
            raise UnsupportedChange(
                f"{schema.qualified_name}: column {column.name!r} is not part of the old row although "
                "the identity is full"
            )
        arrays.append(pa.concat_arrays([whole(rows[column.name]), old_values(rows, column.name)]))
        if column.lake.special:
            arrays.append(
                pa.concat_arrays(
                    [special_texts(marked, column.name, count), special_texts(old_marked, column.name, count)]
                )
            )
    numbers = number_rows(arrays, 2 * count, bits=True)
    return numbers[:count], numbers[count:]


def old_values(rows: pa.Table, name: str) -> pa.Array:
    """A column of the old rows; NULL everywhere in a table of which none is ever sent."""
    if envelope.OLD not in rows.column_names:
        return pa.nulls(len(rows), rows.schema.field(name).type)
    return whole(pc.struct_field(rows[envelope.OLD], [name]))


def _payload(rows: pa.Table, schema: TableSchema, carried: Sequence[str]) -> pa.Table:
    own = [column.name for column in schema.columns]
    return rows.select([*own, envelope.LSN, envelope.TS, *carried, envelope.SPECIAL])


def _gathered(
    rows: pa.Table, schema: TableSchema, outcome: Outcome, sources: dict[int, Numbers], carried: Sequence[str]
) -> pa.Table:
    last = pa.array(outcome.last)
    names, arrays = [], []
    for column in schema.columns:
        indices = (
            last if column.attnum not in sources else pa.array(sources[column.attnum], mask=sources[column.attnum] < 0)
        )
        names.append(column.name)
        arrays.append(whole(rows[column.name]).take(indices))
    changed = [envelope.LSN, envelope.TS, *carried]
    names += [*changed, envelope.SPECIAL]
    arrays += [
        *(whole(rows[name]).take(last) for name in changed),
        special_of(rows, schema.columns, outcome.last, sources, but=outcome.deleted),
    ]
    return pa.table(arrays, names=names)


def special_of(
    rows: pa.Table,
    columns: Sequence[ColumnSchema],
    last: Numbers,
    sources: dict[int, Numbers],
    *,
    but: Claims | None = None,
) -> pa.Array:
    """Marked texts, each from the change that its column's value comes from: `last`, or what
    `sources` has for the column. `but` says which have none.
    """
    kind = pa.map_(pa.string(), pa.string())
    marked = special_rows(rows[envelope.SPECIAL])
    if not marked:
        return pa.nulls(len(last), kind)
    alive = np.ones(len(last), dtype=bool) if but is None else ~but
    positions = np.fromiter(marked, dtype=np.int64)
    result: list[dict[str, str] | None] = [None] * len(last)
    for column in columns:
        source = sources.get(column.attnum, last)
        for place in np.flatnonzero(np.isin(source, positions) & alive):
            text = marked[int(source[place])].get(column.name)
            if text is not None:
                result[place] = {**(result[place] or {}), column.name: text}
    return pa.array([None if value is None else list(value.items()) for value in result], kind)
