"""Single values of hundreds of megabytes: carried, at a price in memory that is known."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sluice import lsn
from sluice.contract.entries import Changes
from sluice.manifest.follow import read_entries
from sluice.operate.setup import prepare
from sluice.store.opening import open_store
from tests.support.ingesting import Pipeline
from tests.support.sources import Database

MB = 1 << 20
FIELD = 64 * MB
"""As the server sends it."""
RANDOM = f"(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, {FIELD // 32}))"
VALUES = {
    "text": (
        "text",
        (
            "(SELECT left(string_agg('order ' || i || ' was shipped to customer ' || i % 977 || ', ', "
            f"''), {FIELD}) FROM generate_series(1, 1700000) i)"
        ),
    ),
    "text that compresses to half": ("text", RANDOM),
    "bytea": (
        "bytea",
        f"(SELECT decode(string_agg(md5(random()::text), ''), 'hex') FROM generate_series(1, {FIELD // 32}))",
    ),
}
TIMES = {"text that compresses to half": 5}
"""All others 4."""
SLACK_MB = 40
"""What two runs of one program differ by, and batches of 8 MB beside the field."""


def peak_mb(database: Database, spool: Path, until: int) -> float:
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
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return float(json.loads(done.stdout)["peak_rss_mb"])


@pytest.mark.parametrize("kind", VALUES)
def test_one_large_field_takes_a_known_multiple_of_what_the_server_sends(
    database: Database, tmp_path: Path, kind: str
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    store = open_store(spool.as_uri(), prefix="bench/", options={})
    pipeline = Pipeline(database, store)
    type_name, value = VALUES[kind]
    database.execute(
        f"CREATE TABLE a (id int PRIMARY KEY, v {type_name})", f"CREATE PUBLICATION {database.publication} FOR TABLE a"
    )
    prepare(pipeline.options(), store, dry_run=False)
    peak_mb(database, spool, lsn.parse(pipeline.wal_end()))
    database.execute("INSERT INTO a VALUES (1, 'x')")
    usual = peak_mb(database, spool, lsn.parse(pipeline.wal_end()))
    database.execute(f"INSERT INTO a VALUES (2, {value})")
    peak = peak_mb(database, spool, lsn.parse(pipeline.wal_end()))
    segments = [
        segment
        for entry, _ in read_entries(store, after_seq=0)
        if isinstance(entry.body, Changes)
        for segment in entry.body.segments
    ]
    assert sum(segment.rows for segment in segments) == 2
    times = (peak - usual - SLACK_MB) / (FIELD / MB)
    assert times <= TIMES.get(kind, 4), f"{peak:.0f} MB at most, {usual:.0f} MB without the field"


def test_one_large_field_of_a_table_that_is_copied_takes_no_more(database: Database, tmp_path: Path) -> None:
    type_name, value = VALUES["text"]
    database.execute(
        f"CREATE TABLE a (id int PRIMARY KEY, v {type_name})", f"CREATE PUBLICATION {database.publication} FOR TABLE a"
    )
    peaks = []
    for number, content in enumerate(("'x'", value)):
        database.execute(f"INSERT INTO a VALUES ({number}, {content})")
        spool = tmp_path / str(number)
        spool.mkdir()
        store = open_store(spool.as_uri(), prefix="bench/", options={})
        pipeline = Pipeline(database, store)
        prepare(pipeline.options(), store, dry_run=False)
        peaks.append(peak_mb(database, spool, lsn.parse(pipeline.wal_end())))
        assert pipeline.table("public.a").state == "live"
        database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    assert (peaks[1] - peaks[0] - SLACK_MB) / (FIELD / MB) <= 4, (
        f"{peaks[1]:.0f} MB at most, {peaks[0]:.0f} MB without the field"
    )


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "of a prefix that is not wanted"])
def test_a_message_above_512_megabytes_is_carried_whole_or_passed_over(pipeline: Pipeline, kept: bool) -> None:
    size = 513 * MB
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run(messages=True)
    pipeline.database.execute(
        f"SELECT pg_logical_emit_message(false, 'large', convert_to(repeat('x', {size}), 'UTF8'))",
        "INSERT INTO a VALUES (1)",
    )
    pipeline.run(messages=True, message_prefixes=("large",) if kept else ("other",))
    assert [row["id"] for row in pipeline.rows("public.a")] == [1]
    lengths = [len(content) for content in pipeline.parquet("_sluice.messages")["content"].to_pylist()] if kept else []
    assert lengths == ([size] if kept else [])
