"""Rows and their envelope: what was not sent is said, old rows are kept, and the counts of the manifest are true."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice.errors import DecodeError, UnsupportedChange
from sluice.ingest.encode.rows import encode_rows, encode_truncate, segment_schema
from sluice.ingest.encode.stats import SegmentStats, total
from tests.support.pgoutput_bytes import UNCHANGED, Field, delete, insert, update
from tests.support.spooled import OID, encoded, inserted, table, walked

INT4, TEXT, NUMERIC, DATE = 23, 25, 1700, 1082
NUMERIC_12_2 = (12 << 16 | 2) + 4
KEYED = table(("id", INT4, -1), ("note", TEXT, -1), ("day", DATE, -1), key=["id"])
FULL = table(("id", INT4, -1), ("note", TEXT, -1), ("day", DATE, -1), key=["id"], replica_identity="f")
LONG = b"a note that is longer than a view holds"


def test_the_schema_is_the_table_then_the_envelope() -> None:
    schema = segment_schema(KEYED)
    assert schema.names == ["id", "note", "day", *envelope.SEGMENT_ENVELOPE]
    assert schema.field(envelope.OLD).type == pa.struct([("id", pa.int32())])
    assert schema.field(envelope.TS).type == pa.timestamp("us", "UTC")
    assert encoded(KEYED, insert(OID, [b"1", None, None])).batch.schema == schema


def forgotten(first: int) -> TableSchema:
    """KEYED without the numbers of its columns from this one on."""
    return replace(KEYED, columns=(*KEYED.columns[:first], *(replace(one, attnum=0) for one in KEYED.columns[first:])))


def test_a_column_that_the_catalog_forgot_has_no_field_id() -> None:
    assert segment_schema(forgotten(2)).field("day").metadata is None


def test_without_identity_columns_there_is_no_old() -> None:
    batch = inserted(table(("note", TEXT, -1), replica_identity="n"), [b"x"]).batch
    assert batch.schema.names == ["note", *(name for name in envelope.SEGMENT_ENVELOPE if name != envelope.OLD)]


def test_a_column_with_a_reserved_name_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedChange, match=r"public\.t\._Sluice_op"):
        segment_schema(table(("_Sluice_op", TEXT, -1)))


def test_rows_keep_their_order_and_operations() -> None:
    batch = encoded(
        KEYED,
        insert(OID, [b"1", b"x", None]),
        delete(OID, [b"1", None, None]),
        update(OID, [b"2", b"y", None]),
        insert(OID, [b"3", b"z", None]),
    ).batch
    assert batch.column(envelope.OP).to_pylist() == ["i", "d", "u", "i"]
    assert batch.column("id").to_pylist() == [1, None, 2, 3]
    assert batch.column(envelope.ORDINAL).to_pylist() == [0, 1, 2, 3]
    assert batch.column(envelope.XID).to_pylist() == [9] * 4
    assert batch.column(envelope.LSN).to_pylist() == [1_000] * 4
    assert batch.column(envelope.TS).to_pylist() == [datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=timezone.utc)] * 4  # noqa: UP017 - as pyarrow compares


def test_a_value_that_was_not_sent_is_marked_by_attnum() -> None:
    rows = encoded(
        KEYED,
        update(OID, [b"1", UNCHANGED, None]),
        update(OID, [b"1", b"new", b"2024-01-01"]),
        update(OID, [b"1", UNCHANGED, UNCHANGED]),
    )
    assert rows.batch.column("note").to_pylist() == [None, "new", None]
    assert rows.batch.column(envelope.UNCHANGED).to_pylist() == [[2], None, [2, 3]]
    assert rows.stats.unchanged == {"2": 2, "3": 1}


def test_a_value_that_was_not_sent_is_taken_from_a_full_old_row() -> None:
    rows = encoded(
        FULL,
        update(OID, [b"1", UNCHANGED, b"2024-01-01"], old=[b"1", LONG, None], marker=b"O"),
        insert(OID, [b"2", b"x", None]),
    )
    assert rows.batch.column("note").to_pylist() == [LONG.decode(), "x"]
    assert rows.batch.column(envelope.UNCHANGED).to_pylist() == [None, None]
    assert rows.stats.unchanged == {}


def test_a_key_that_was_not_sent_is_taken_from_the_old_key_and_nothing_else_is() -> None:
    schema = table(("id", TEXT, -1), ("note", TEXT, -1), key=["id"])
    rows = encoded(
        schema,
        update(OID, [UNCHANGED, UNCHANGED], old=[b"k", b"not to be used"]),
        update(OID, [UNCHANGED, b"n"], old=[b"j", None]),
    )
    assert rows.batch.column("id").to_pylist() == ["k", "j"]
    assert rows.batch.column("note").to_pylist() == [None, "n"]
    assert rows.batch.column(envelope.UNCHANGED).to_pylist() == [[2], None]
    assert rows.stats.key_changes == 0
    assert rows.stats.key_ranges == {"id": ("j", "k")}


def test_a_null_in_a_full_old_row_does_not_stand_for_a_value_that_was_not_sent() -> None:
    """Under publish_via_partition_root an old row may hold false NULLs."""
    rows = encoded(FULL, update(OID, [b"1", UNCHANGED, None], old=[b"1", None, None], marker=b"O"))
    assert rows.batch.column(envelope.UNCHANGED).to_pylist() == [[2]]


def test_columns_without_a_number_must_not_be_confused() -> None:
    unsent = update(OID, [b"1", b"x", UNCHANGED])
    assert encoded(forgotten(2), unsent).batch.column(envelope.UNCHANGED).to_pylist() == [[0]]
    with pytest.raises(UnsupportedChange, match=r"public\.t\.day"):
        encoded(forgotten(1), unsent)


def test_an_old_key_holds_the_identity_columns_alone() -> None:
    batch = encoded(KEYED, delete(OID, [b"5", b"stray", None])).batch
    assert batch.column(envelope.OLD).to_pylist() == [{"id": 5}]


def test_an_old_row_without_an_identity_value_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedChange, match=r"public\.t\.id"):
        encoded(KEYED, delete(OID, [UNCHANGED, None, None]))


def test_several_special_values_of_one_row_lie_in_one_map() -> None:
    schema = table(("a", NUMERIC, NUMERIC_12_2), ("b", TEXT, -1), ("c", DATE, -1))
    batch = inserted(
        schema,
        [b"1.00", b"x", b"2024-01-01"],
        [b"NaN", b"y", b"-infinity"],
        [b"2.00", b"z", b"0044-03-15 BC"],
        [b"Infinity", None, None],
    ).batch
    batch.validate(full=True)
    both = [("a", "NaN"), ("c", "-infinity")]
    assert batch.column(envelope.SPECIAL).to_pylist() == [None, both, [("c", "0044-03-15 BC")], [("a", "Infinity")]]


def test_a_key_change_is_a_difference_in_bytes() -> None:
    schema = table(("k", TEXT, -1), ("v", TEXT, -1), key=["k"], replica_identity="f")
    rows = encoded(
        schema,
        update(OID, [b"a", b"2"], old=[b"a", b"1"], marker=b"O"),
        update(OID, [b"A", b"2"], old=[b"a", b"2"], marker=b"O"),
        update(OID, [UNCHANGED, b"3"], old=[b"A", b"2"], marker=b"O"),
        update(OID, [LONG + b"!", b"3"], old=[LONG + b"?", b"2"], marker=b"O"),
        delete(OID, [b"A", b"3"], marker=b"O"),
    )
    assert rows.stats.key_changes == 2


def test_key_ranges_cover_new_and_old_keys() -> None:
    rows = encoded(
        KEYED,
        insert(OID, [b"5", None, None]),
        update(OID, [b"7", None, None], old=[b"-3", None, None]),
        delete(OID, [b"90", None, None]),
    )
    assert rows.stats.key_ranges == {"id": (-3, 90)}
    assert rows.stats.ops == {"i": 1, "u": 1, "d": 1}
    assert rows.stats.key_changes == 1


@pytest.mark.parametrize(
    ("type_oid", "typmod", "key", "expected"),
    [
        (TEXT, -1, b"x" * 64, {"k": ("x" * 64, "x" * 64)}),
        (TEXT, -1, b"x" * 65, {}),
        (2950, -1, b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", {"k": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",) * 2}),
        (DATE, -1, b"2024-01-01", {}),
        (NUMERIC, NUMERIC_12_2, b"1.00", {}),
        (INT4, -1, None, {}),
        (INT4, -1, UNCHANGED, {}),
    ],
)
def test_a_key_column_has_a_range_only_where_it_is_certain_and_short(
    type_oid: int, typmod: int, key: Field, expected: object
) -> None:
    stats = encoded(table(("k", type_oid, typmod), key=["k"]), update(OID, [key])).stats
    assert stats.key_ranges == expected
    assert stats.unranged == (frozenset() if expected else {"k"})


def test_a_key_that_old_rows_do_not_tell_has_no_range() -> None:
    schema = table(("id", INT4, -1), ("k", INT4, -1), key=["id", "k"], identity=["id"])
    stats = encoded(schema, insert(OID, [b"1", b"2"]), delete(OID, [b"1", None])).stats
    assert stats.key_ranges == {"id": (1, 1)}


def test_totals_add_up_and_an_unknown_range_stays_unknown() -> None:
    known = SegmentStats(2, {"i": 2}, {"2": 1}, 0, {"a": (1, 4), "b": ("x", "y")}, first_lsn=50, last_lsn=60)
    other = SegmentStats(
        3, {"i": 1, "u": 2}, {"2": 1, "3": 5}, 1, {"a": (-2, 3)}, frozenset({"b"}), first_lsn=70, last_lsn=80
    )
    truncate = SegmentStats(1, {"t": 1})
    assert total([known, truncate, other]) == SegmentStats(
        6, {"i": 3, "t": 1, "u": 2}, {"2": 2, "3": 5}, 1, {"a": (-2, 4)}, frozenset({"b"}), first_lsn=50, last_lsn=80
    )


def test_a_truncate_is_one_row_without_values() -> None:
    rows = encode_truncate(FULL, ordinal=4, xid=9, lsn=77, commit_time_us=5)
    assert rows.batch.schema == segment_schema(FULL)
    said = {envelope.OP: "t", envelope.LSN: 77, envelope.ORDINAL: 4, envelope.XID: 9}
    assert rows.batch.to_pylist()[0] | {envelope.TS: None} == dict.fromkeys(rows.batch.schema.names) | said
    assert rows.stats == SegmentStats(1, {"t": 1}, first_lsn=77, last_lsn=77)


def test_the_commit_is_filled_in_once_it_is_known() -> None:
    for rows in (
        encoded(KEYED, insert(OID, [b"1", None, None]), lsn=None),
        encode_truncate(KEYED, ordinal=0, xid=9, lsn=None, commit_time_us=None),
    ):
        assert rows.batch.column(envelope.LSN).null_count == rows.batch.column(envelope.TS).null_count == 1
        assert (rows.stats.first_lsn, rows.stats.last_lsn) == (0, 0)
        done = rows.with_commit(lsn=123, commit_time_us=456)
        assert done.batch.schema == rows.batch.schema
        assert done.batch.column(envelope.LSN).to_pylist() == [123]
        assert done.batch.column(envelope.TS).cast(pa.int64()).to_pylist() == [456]
        assert (done.stats.first_lsn, done.stats.last_lsn) == (123, 123)


def test_rows_of_ended_transactions_keep_their_own_commit() -> None:
    rows = encoded(KEYED, insert(OID, [b"1", None, None]), lsn=50).with_commit(lsn=99, commit_time_us=99)
    assert rows.batch.column(envelope.LSN).to_pylist() == [50]
    assert (rows.stats.first_lsn, rows.stats.last_lsn) == (50, 50)


@pytest.mark.parametrize("schema", [KEYED, FULL, table()])
def test_no_rows_and_no_columns_are_fine(schema: TableSchema) -> None:
    none = encoded(schema)
    assert none.stats == SegmentStats(0)
    assert none.batch.num_rows == 0
    assert none.batch.schema == segment_schema(schema)


def test_rows_of_a_table_without_columns_are_still_rows() -> None:
    assert inserted(table(), [], []).batch.column(envelope.OP).to_pylist() == ["i", "i"]


def test_rows_of_another_width_than_the_schema_are_refused() -> None:
    rows, one = walked(KEYED, [insert(OID, [b"1", None, None])]), np.arange(1)
    with pytest.raises(DecodeError, match=r"public\.t"):
        encode_rows(rows, table(), ordinal=one, xid=one, lsn=None, commit_time_us=None)


VALUES = st.sampled_from([b"1", b"22", b"-5"])
SENT = st.tuples(
    VALUES,
    st.none() | st.just(UNCHANGED) | st.binary(max_size=20).map(lambda raw: raw.hex().encode()),
    st.sampled_from([None, b"infinity", b"2024-01-01"]),
)
OLD = st.none() | st.tuples(VALUES, st.none() | st.just(b"old"), st.sampled_from([None, b"2024-01-01", b"-infinity"]))


@given(st.lists(st.tuples(st.sampled_from("iud"), SENT, OLD), max_size=12))
def test_every_value_of_every_row_can_be_read_back(
    changes: list[tuple[str, tuple[Field, ...], tuple[Field, ...] | None]],
) -> None:
    """An INSERT without a value comes from a row filter, and has its table read again."""
    changes = [("u" if op == "i" and UNCHANGED in new else op, new, old) for op, new, old in changes]
    made: dict[str, Callable[..., bytes]] = {
        "i": lambda new, _: insert(OID, new),
        "u": lambda new, old: update(OID, new, old=old, marker=b"O"),
        "d": lambda _, old: delete(OID, old or (b"1", None, None), marker=b"O"),
    }
    batch = encoded(FULL, *(made[op](new, old) for op, new, old in changes)).batch
    batch.validate(full=True)
    for (op, new, old), row in zip(changes, batch.to_pylist(), strict=True):
        sent_old = None if op == "i" else old or ((b"1", None, None) if op == "d" else None)
        assert _read_back(row, envelope.SPECIAL, row) == (
            ("", "", "") if op == "d" else tuple(map(_text, _resolved(new, sent_old)))
        )
        assert (row[envelope.OLD] is None) == (sent_old is None)
        if sent_old is not None:
            assert _read_back(row[envelope.OLD], envelope.OLD_SPECIAL, row) == tuple(map(_text, sent_old))


def _resolved(new: tuple[Field, ...], old: tuple[Field, ...] | None) -> tuple[Field, ...]:
    return tuple(
        old[i] if value is UNCHANGED and old is not None and old[i] is not None else value
        for i, value in enumerate(new)
    )


def _text(value: Field) -> str:
    return "" if value is None else "unchanged" if value is UNCHANGED else f"={bytes(value).decode()}"  # type: ignore[arg-type]


def _read_back(values: dict[str, object], special: str, row: dict[str, object]) -> tuple[str, ...]:
    marks = dict(row[special] or ())  # type: ignore[call-overload]
    unchanged = row[envelope.UNCHANGED] or () if values is row else ()
    texts = []
    for attnum, name in enumerate(("id", "note", "day"), 1):
        value = values[name]
        if value is not None:
            texts.append(f"={value}")
        elif name in marks:
            texts.append(f"={marks[name]}")
        else:
            texts.append("unchanged" if attnum in unchanged else "")  # type: ignore[operator]
    return tuple(texts)
