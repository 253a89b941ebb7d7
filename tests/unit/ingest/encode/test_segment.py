"""Segment files: what was appended comes back, in order, for any reader of Parquet."""

import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice.ingest.encode import segment
from sluice.ingest.encode.rows import EncodedRows, encode_truncate, segment_schema
from sluice.ingest.encode.segment import SegmentFile, SegmentWriter
from sluice.ingest.encode.stats import SegmentStats
from tests.support.pgoutput_bytes import UNCHANGED, delete, insert, update
from tests.support.spooled import OID, encoded, inserted, table

NUMERIC_12_2 = (12 << 16 | 2) + 4
TYPES = [16, 17, 20, 21, 23, 25, 26, 700, 701, 1082, 1114, 1184, 1700, 1007, 1009, 1231, 1185]
WIDE = table(*((f"c{oid}", oid, NUMERIC_12_2) for oid in TYPES), key=["c20"], replica_identity="f")
WIDE_NAMES = [column.name for column in WIDE.columns]
ROW = [
    b"t",
    b"\\x00ff",
    b"1",
    b"2",
    b"3",
    "é, a longer text".encode(),
    b"4",
    b"0.1",
    b"0.1",
    b"0001-01-01",
    b"9999-12-31 23:59:59.999999",
    b"1900-01-01 00:00:00.000001+00",
    b"12.34",
    b"{1,NULL}",
    b'{"a b",""}',
    b"{1.00}",
    b'{"2024-01-01 00:00:00+00"}',
]
KEYED = table(("id", 23, -1), ("note", 25, -1), key=["id"])


def written(*parts: EncodedRows, schema: TableSchema = WIDE) -> tuple[SegmentFile, pa.Table, pq.FileMetaData]:
    writer = SegmentWriter(schema)
    for part in parts:
        writer.append(part)
    file = writer.finish()
    reader = pq.ParquetFile(io.BytesIO(file.data))
    return file, reader.read(), reader.metadata


def test_every_type_survives_the_file() -> None:
    rows = encoded(
        WIDE,
        insert(OID, ROW),
        insert(OID, [None] * len(TYPES)),
        update(OID, [*ROW[:5], UNCHANGED, *ROW[6:]], old=[*ROW[:5], None, *ROW[6:]], marker=b"O"),
        update(OID, [*ROW[:12], b"NaN", b"{{1}}", *ROW[14:]]),
        delete(OID, ROW, marker=b"O"),
    )
    truncate = encode_truncate(WIDE, ordinal=5, xid=9, lsn=1_000, commit_time_us=1_000)
    file, read, _ = written(rows, truncate)
    assert read.to_pylist() == pa.Table.from_batches([rows.batch, truncate.batch]).to_pylist()
    assert [read.schema.field(name).type for name in WIDE_NAMES] == [
        segment_schema(WIDE).field(name).type for name in WIDE_NAMES
    ]
    assert file.stats.ops == {"i": 2, "u": 2, "d": 1, "t": 1}
    assert file.stats.rows == 6


def test_columns_carry_attnum_as_field_id_and_the_envelope_none() -> None:
    _, _, metadata = written(inserted(WIDE, ROW))
    ids = {field.name: (field.metadata or {}).get(b"PARQUET:field_id") for field in metadata.schema.to_arrow_schema()}
    assert [ids[name] for name in WIDE_NAMES] == [str(column.attnum).encode() for column in WIDE.columns]
    assert [ids.get(name) for name in envelope.SEGMENT_ENVELOPE] == [None] * len(envelope.SEGMENT_ENVELOPE)


def test_the_file_is_zstd_and_its_hash_and_size_are_its_own() -> None:
    file, _, metadata = written(inserted(WIDE, ROW))
    assert file.sha256 == hashlib.sha256(file.data).hexdigest()
    assert {metadata.row_group(0).column(index).compression for index in range(metadata.num_columns)} == {"ZSTD"}
    assert metadata.format_version == "2.6"


def test_order_is_that_of_appending_across_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "ROW_GROUP_ROWS", 100)
    parts = [
        inserted(KEYED, *([str(part * 1000 + row).encode(), b"n"] for row in range(size)))
        for part, size in enumerate((60, 1, 300, 0, 40))
    ]
    _, read, metadata = written(*parts, schema=KEYED)
    assert read.column("id").to_pylist() == [value for part in parts for value in part.batch.column("id").to_pylist()]
    assert max(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)) <= 100


def test_memory_is_bounded_by_one_row_group_and_the_compressed_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "ROW_GROUP_BYTES", 200_000)
    part = inserted(KEYED, *([str(row).encode(), b"n" * 100] for row in range(500)))
    writer = SegmentWriter(KEYED)
    assert writer.nbytes == 0
    for _ in range(60):
        writer.append(part)
        assert 0 < writer.nbytes < 200_000 + part.nbytes
    assert 60 * part.nbytes > 3_000_000
    assert writer.finish().stats.rows == 30_000


def test_a_file_without_rows_is_readable() -> None:
    file, read, _ = written(schema=KEYED)
    assert read.num_rows == 0
    assert read.column_names == segment_schema(KEYED).names
    assert file.stats == SegmentStats(0)


def test_a_dictionary_is_used_where_values_repeat_and_nowhere_else() -> None:
    schema = table(("id", 23, -1), ("state", 25, -1))
    _, _, metadata = written(
        inserted(schema, *([str(row).encode(), b"open" if row % 2 else b"done"] for row in range(1000))), schema=schema
    )
    group = metadata.row_group(0)
    encodings = {
        group.column(index).path_in_schema: group.column(index).encodings for index in range(metadata.num_columns)
    }
    assert "RLE_DICTIONARY" in encodings["state"]
    assert "RLE_DICTIONARY" not in encodings["id"]
    assert "DELTA_BINARY_PACKED" in encodings[envelope.ORDINAL]
