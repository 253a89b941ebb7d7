"""Single values of hundreds of megabytes: carried, at a price in memory that is known."""

import hashlib
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice import lsn
from sluice.operate.setup import prepare
from sluice.store.opening import open_store
from tests.support import commands
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.sources import Database

MB = 1 << 20
FIELD = 64 * MB
"""The value's own bytes; bytea as text takes twice as many on the wire."""
DIGITS = f"(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, {FIELD // 16}))"
PIECE = "translate(encode(sha512(random()::text::bytea), 'base64'), E'=\\n', '')"
PIECES = f"(SELECT string_agg({PIECE}, '') FROM generate_series(0, {FIELD // 86}))"
VALUES = {"text": ("text", f"left({PIECES}, {FIELD})"), "bytea": ("bytea", f"decode({DIGITS}, 'hex')")}
"""Neither compresses much: what is written counts as well."""
TIMES = 4
SLACK_MB = 20
"""What two runs of one program differ by, and batches of 8 MB beside the field."""

pytestmark = slow


def peak_mb(database: Database, spool: Path, until: int, *, streaming: str = "auto", binary: bool = False) -> float:
    """The most memory that an ingest process of its own had at any moment on its way to `until`."""
    command = [
        sys.executable,
        "-m",
        "tests.bench.ingest_once",
        database.dsn,
        database.slot,
        database.publication,
        str(spool),
        lsn.show(until),
        streaming,
    ]
    done = commands.ended(*command, "binary" if binary else "text", timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return float(json.loads(done.stdout)["peak_rss_mb"])


@pytest.mark.parametrize(
    ("kind", "binary", "streaming"),
    [
        pytest.param("text", False, "off", id="text"),
        pytest.param("text", False, "on", id="text, streamed"),
        pytest.param("bytea", False, "off", id="bytea as text"),
        pytest.param("bytea", False, "on", id="bytea as text, streamed"),
        pytest.param("bytea", True, "off", id="bytea in binary form"),
        pytest.param("bytea", True, "on", id="bytea in binary form, streamed"),
    ],
)
def test_one_large_field_takes_at_most_four_times_its_size(
    database: Database, tmp_path: Path, kind: str, binary: bool, streaming: str
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    store = open_store(spool.as_uri(), prefix="bench/", options={})
    pipeline = IngestPipeline(database, store)
    type_name, value = VALUES[kind]
    database.execute(
        f"CREATE TABLE a (id int PRIMARY KEY, v {type_name})",
        "CREATE PUBLICATION {p} FOR TABLE a",
        f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'",
    )
    prepare(pipeline.options(), store, dry_run=False)

    def peak() -> float:
        return peak_mb(database, spool, lsn.parse(pipeline.wal_end()), streaming=streaming, binary=binary)

    peak()
    database.execute("INSERT INTO a VALUES (1, 'x')")
    usual = peak()
    database.execute(f"INSERT INTO a VALUES (2, {value})")
    most = peak()
    segments = [segment for change in pipeline.changes() for segment in change.segments]
    assert sum(segment.rows for segment in segments) == 2
    blocks = "SELECT stream_count FROM pg_stat_replication_slots WHERE slot_name = %s"
    assert (database.one(blocks, database.slot)[0] > 0) == (streaming == "on")
    large = max(segments, key=lambda segment: segment.bytes)
    assert (spooled_md5(spool / "bench" / large.key),) == database.one("SELECT md5(v) FROM a WHERE id = 2")
    times = (most - usual - SLACK_MB) / (FIELD / MB)
    assert times <= TIMES, f"{times:.2f} times: {most:.0f} MB at most, {usual:.0f} MB without the field"


def spooled_md5(file: Path) -> str:
    (value,) = pq.read_table(file, columns=["v"])["v"]
    return hashlib.md5(value.as_buffer(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("kind", VALUES)
def test_one_large_field_of_a_table_that_is_read_takes_no_more(database: Database, tmp_path: Path, kind: str) -> None:
    type_name, value = VALUES[kind]
    database.execute(f"CREATE TABLE a (id int PRIMARY KEY, v {type_name})", "CREATE PUBLICATION {p} FOR TABLE a")
    peaks = []
    for number, content in enumerate(("'x'", value)):
        database.execute(f"INSERT INTO a VALUES ({number}, {content})")
        spool = tmp_path / str(number)
        spool.mkdir()
        store = open_store(spool.as_uri(), prefix="bench/", options={})
        pipeline = IngestPipeline(database, store)
        prepare(pipeline.options(), store, dry_run=False)
        peaks.append(peak_mb(database, spool, lsn.parse(pipeline.wal_end())))
        assert pipeline.table("public.a").state == "live"
        database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    times = (peaks[1] - peaks[0] - SLACK_MB) / (FIELD / MB)
    assert times <= TIMES, f"{times:.2f} times: {peaks[1]:.0f} MB at most, {peaks[0]:.0f} MB without the field"


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "of a prefix that is not wanted"])
def test_a_message_above_512_megabytes_is_carried_whole_or_passed_over(pipeline: IngestPipeline, kept: bool) -> None:
    size = 513 * MB
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)", messages=True)
    pipeline.execute(
        f"SELECT pg_logical_emit_message(false, 'large', convert_to(repeat('x', {size}), 'UTF8'))",
        "INSERT INTO a VALUES (1)",
    )
    pipeline.run(messages=True, message_prefixes=("large",) if kept else ("other",))
    assert [row["id"] for row in pipeline.rows("public.a")] == [1]
    lengths = [len(content) for content in pipeline.parquet("_sluice.messages")["content"].to_pylist()] if kept else []
    assert lengths == ([size] if kept else [])
