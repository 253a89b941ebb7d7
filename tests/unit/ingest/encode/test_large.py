"""Values so large that each copy of them counts: moved on receipt, read once, and put into their file by hand."""

import mmap
import sys
from collections import deque

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.errors import DecodeError
from sluice.ingest.encode import thrift
from sluice.ingest.encode.large import write_large
from sluice.ingest.encode.segment import write_segment
from sluice.ingest.encode.types.bytea import read_bytea
from sluice.ingest.encode.views import PADDING, Texts
from sluice.protocol.buffers import LARGE_BYTES, Raw, give_back, moved, private_memory
from sluice.protocol.frames import TAIL, join
from tests.support.extent import cases
from tests.support.pgoutput_bytes import UNCHANGED, update
from tests.support.spooled import OID, encoded, inserted, table

LARGE = bytes(range(256)) * (LARGE_BYTES // 256) + b"!"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes pages back on request")


def test_moved_chunks_lie_one_behind_the_other() -> None:
    assert moved([b"ab", memoryview(b"cd"), LARGE, b""], emptied=True)[:] == b"abcd" + LARGE


@linux_only
def test_only_large_memoryviews_are_emptied_and_only_on_request() -> None:
    owned, plain, small = private_memory(len(LARGE)), bytes(LARGE), private_memory(8)
    owned[:], small[:] = LARGE, b"12345678"
    chunks: list[bytes | memoryview] = [plain, memoryview(owned), memoryview(small)]
    assert moved(chunks, emptied=False)[:] == LARGE + LARGE + b"12345678"
    assert owned[:] == LARGE
    assert moved(chunks, emptied=True)[:] == LARGE + LARGE + b"12345678"
    assert owned[:].count(0) > len(LARGE) * 9 // 10
    assert (plain, small[:]) == (LARGE, b"12345678")


@linux_only
def test_memory_is_given_back_in_whole_pages_inside_the_bounds() -> None:
    memory = private_memory(4 * mmap.PAGESIZE)
    memory[:] = b"x" * len(memory)
    give_back(memory, 10, 3 * mmap.PAGESIZE - 1)
    assert memory[: mmap.PAGESIZE] == b"x" * mmap.PAGESIZE
    assert memory[mmap.PAGESIZE : 2 * mmap.PAGESIZE] == bytes(mmap.PAGESIZE)
    assert memory[2 * mmap.PAGESIZE :] == b"x" * (2 * mmap.PAGESIZE)
    give_back(b"plain bytes stay", 0, 16)


def test_frames_with_a_large_one_join_to_the_same_table_as_small_ones() -> None:
    head = b"w" + bytes(24)
    frames = [head + b"B" + bytes(20), head + b"I" + LARGE, b"k" + bytes(17)]
    found = join(frames)
    assert isinstance(found.raw, mmap.mmap)
    assert found.raw[:] == b"".join([*frames, TAIL])
    assert [chr(tag) for tag in found.tag] == ["B", "I", "\0"]


def hexed(values: list[bytes | None], *, read_once: bool, spoil: bool = False) -> tuple[Texts, Raw]:
    texts = [b"" if value is None else b"\\x" + value.hex().encode() for value in values]
    if spoil:
        texts[-1] = texts[-1][:-1] + b"g"
    raw = private_memory(sum(map(len, texts)) + len(PADDING))
    raw[: -len(PADDING)] = b"".join(texts)
    length = np.array([len(text) for text in texts], np.int32)
    start = np.cumsum(length, dtype=np.int64) - length
    return Texts(raw, start, length, np.array([value is not None for value in values]), "a.v", read_once=read_once), raw


@pytest.mark.parametrize("read_once", [True, False])
def test_a_large_bytea_is_read_exactly_and_its_digits_go_only_where_they_may(read_once: bool) -> None:
    values = [b"small", None, LARGE, b"", b"\xff"]
    texts, raw = hexed(values, read_once=read_once)
    before = raw[:]
    assert read_bytea(texts, pa.binary()).array.equals(pa.array(values, pa.binary()))
    assert (raw[:] == before) == (not read_once or sys.platform != "linux")


def test_a_large_bytea_that_is_no_hexadecimal_is_refused() -> None:
    with pytest.raises(DecodeError, match="no bytea in hex form"):
        read_bytea(hexed([LARGE], read_once=True, spoil=True)[0], pa.binary())


def test_digits_that_an_old_row_shares_are_not_given_back() -> None:
    """A value that did not change is taken from the old row, and read for the old row as well."""
    schema = table(("id", 23, -1), ("v", 17, -1), key=["id"], replica_identity="f")
    old = [b"1", b"\\x" + LARGE.hex().encode()]
    rows = encoded(schema, update(OID, [b"2", UNCHANGED], old=old, marker=b"O"))
    expected = pa.scalar(LARGE, pa.binary())
    assert rows.batch.column("v")[0].equals(expected)
    assert rows.batch.column("_sluice_old")[0]["v"].equals(expected)


@pytest.mark.parametrize("type_oid", cases([25, 17], quick=[17]), ids=["text", "bytea"])
def test_a_file_with_large_values_has_exact_sizes_and_its_columns_in_order(type_oid: int) -> None:
    schema = table(("id", 23, -1), ("v", type_oid, -1), ("w", type_oid, -1), ("n", 23, -1), key=["id"])
    noise = np.random.default_rng(7).integers(0, 256, LARGE_BYTES + 1, np.uint8).tobytes()
    large = b"\\x" + noise.hex().encode() if type_oid == 17 else noise.hex().encode()
    v = [large if at == 11 else None if at % 3 else b"\\x00" for at in range(21)]
    w = [large if at == 5 else b"\\x01" for at in range(21)]
    rows = inserted(schema, *([b"%d" % at, v[at], w[at], b"%d" % at] for at in range(21)))
    assert rows.large
    assert not inserted(schema, *([b"1", large[: LARGE_BYTES // 16], None, None] for _ in range(40))).large
    usual, queue = write_segment(schema, [rows]), deque([rows])
    file = write_large(queue)
    assert (file.stats, len(queue)) == (usual.stats, 0)
    reader = pq.ParquetFile(pa.BufferReader(file.data))
    assert reader.read().equals(pq.read_table(pa.BufferReader(usual.data)))
    group = reader.metadata.row_group(0)
    assert [group.column(number).statistics is not None for number in (0, 1)] == [True, False]
    end = 4
    for number in range(group.num_columns):
        column = group.column(number)
        begin = column.dictionary_page_offset or column.data_page_offset
        assert begin == end
        end = begin + column.total_compressed_size
    assert group.total_byte_size == sum(
        group.column(number).total_uncompressed_size for number in range(group.num_columns)
    )
    footer = bytes(file.data[end:-8])
    assert len(footer) == int.from_bytes(file.data[-8:-4], "little")
    assert thrift.write(thrift.read(footer)) == footer


def test_a_slice_of_rows_is_written_as_that_slice() -> None:
    schema = table(("id", 23, -1), ("v", 25, -1), key=["id"])
    whole = inserted(schema, [b"1", b"before"], [b"2", b"x" * (LARGE_BYTES + 1)], [b"3", None], [b"4", b"behind"])
    part = type(whole)(whole.schema, whole.batch.slice(1, 2), whole.stats, whole.nbytes)
    assert pq.read_table(pa.BufferReader(write_large(deque([part])).data)).equals(
        pa.Table.from_batches([part.batch]).cast(part.batch.schema)
    )
