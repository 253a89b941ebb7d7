"""Which keys changes are about: what decides whether rows that were read again are still right."""

import uuid

from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice.ingest.encode.rows import EncodedRows
from sluice.ingest.encode.segment import write_segment
from sluice.ingest.snapshot.touched_keys import keys_in
from sluice.store.memory import MemoryStore
from tests.support.pgoutput_bytes import delete, insert, update
from tests.support.spooled import OID, encoded, table

KEYED = table(("id", 23, -1), ("day", 1082, -1), ("note", 25, -1), key=["id", "day"])


def stored(store: MemoryStore, rows: EncodedRows, schema: TableSchema = KEYED) -> Segment:
    key = f"data/{uuid.uuid4().hex}.parquet"
    file = write_segment(schema, [rows])
    store.put(key, file.data)
    return file.segment(key, schema)


def keys_of(*messages: bytes) -> set[str]:
    store = MemoryStore(uuid.uuid4().hex)
    return keys_in(store, [stored(store, encoded(KEYED, *messages))], {KEYED.version: KEYED})


def gone(key: bytes, day: bytes) -> bytes:
    return delete(OID, [key, day, None])


def test_removals_of_different_rows_are_about_different_keys() -> None:
    assert not keys_of(gone(b"1", b"2024-01-01")) & keys_of(gone(b"2", b"2024-01-01"))
    assert keys_of(gone(b"1", b"2024-01-01")) == keys_of(gone(b"1", b"2024-01-01"))


def test_a_key_is_the_same_one_in_every_kind_of_change_and_on_both_sides_of_one() -> None:
    removed, infinite = keys_of(gone(b"1", b"2024-01-01")), keys_of(gone(b"1", b"infinity"))
    moved = update(OID, [b"2", b"infinity", b"n"], old=[b"1", b"2024-01-01", None])
    assert keys_of(insert(OID, [b"1", b"2024-01-01", b"n"])) == removed
    assert keys_of(insert(OID, [b"1", b"infinity", b"n"])) == infinite != removed
    assert keys_of(moved) == removed | keys_of(gone(b"2", b"infinity"))
