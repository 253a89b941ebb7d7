"""Nothing that a pipeline shows holds a row value or a secret: not its logs, answers, metrics and
pages, not its errors, not its last words.
"""

import json
import re
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.errors import DecodeError, ServiceError
from sluice.protocol.decoder import decode_control
from sluice.protocol.frames import join
from sluice.protocol.tuples import walk_rows
from sluice.source.sessions import open_query, translated
from tests.support import canary, ingesting
from tests.support import pgoutput_bytes as wire
from tests.support.answers import ask
from tests.support.extent import FULL
from tests.support.pipeline import wait_until
from tests.support.source_setup import options_of, since
from tests.support.sources import Database
from tools.local.sluice import Pipeline, SluiceProcess

SEEN_BY_PEOPLE = (
    ("status",),
    ("status", "--json"),
    ("tables",),
    ("tables", "--json"),
    ("check",),
    ("check", "--json"),
    ("check", "--object-store"),
    ("config", "show"),
    ("config", "show", "--json"),
    ("spool", "ls"),
    ("spool", "verify"),
    ("slot", "show"),
)
QUICK = (("status", "--json"), ("tables", "--json"), ("check", "--json"), ("config", "show"))


def configured(database: Database, directory: Path) -> Pipeline:
    key = directory.with_suffix(".key")
    key.write_text(canary.SECRET)
    secret = {"aws_secret_access_key": canary.SECRET}
    settings: dict[str, dict[str, Any]] = {
        "source": {
            "slot": database.slot,
            "publication": database.publication,
            "tables": ["public.*"],
            "messages": True,
        },
        "spool": {"max_delay": "100ms", "options": secret},
        "lake": {"options": secret},
        "apply": {"conf": {"spark.hadoop.fs.s3a.secret.key": canary.SECRET}},
        "tables": {"public.t": {"columns": {"id": {"hash": "hmac-sha256", "key_file": str(key)}}}},
    }
    return Pipeline(directory, name="t", dsn=database.dsn, settings=settings)


def pages(process: SluiceProcess) -> dict[str, str]:
    """Everything that the process serves."""
    (listening,) = [line for line in process.log.read_text().splitlines() if '"listening"' in line]
    address = re.search(r"127\.0\.0\.1:\d+", listening)
    assert address is not None
    paths = ("/", "/metrics", "/status", "/livez", "/readyz", "/startupz", "/no/such/page")
    return {path: ask(address[0], path)[1] for path in paths}


def test_a_running_pipeline_shows_no_canary_and_dies_without_a_core(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE t (id text PRIMARY KEY, body text, n numeric, d date)",
        f"INSERT INTO t VALUES ('{canary.ROW} key', '{canary.ROW} copied', 'NaN', 'infinity')",
    )
    pipeline = configured(database, tmp_path / "t")
    with pipeline.start("run", environment={"SLUICE_TELEMETRY__LOG_LEVEL": "debug"}) as process:
        wait_until(
            lambda: spooled(pipeline, canary.ROW) and '"listening"' in process.log.read_text(),
            what="the snapshot is in the spool",
            processes=(process,),
        )
        database.execute(
            f"UPDATE t SET body = '{canary.ROW} changed'",
            f"SELECT pg_logical_emit_message(true, '{canary.ROW[:30]}', '{canary.ROW} said')",
            f"CREATE TABLE later (id int PRIMARY KEY, note text DEFAULT '{canary.ROW} default')",
            "ALTER PUBLICATION {p} ADD TABLE later",
            "INSERT INTO later VALUES (1)",
            f"ALTER TABLE t ADD added text DEFAULT '{canary.ROW} added'",
            f"UPDATE t SET id = '{canary.ROW} moved'",
        )
        shown = pages(process)
        answers = {" ".join(words): pipeline.run(*words) for words in (SEEN_BY_PEOPLE if FULL else QUICK)}
        assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (0, 0)
        process._process.send_signal(signal.SIGABRT)
        assert process.wait(180) == -signal.SIGABRT
    shown |= {name: done.stdout + done.stderr for name, done in answers.items()} | {"its log": process.log.read_text()}
    assert {name: canary.in_text(text) for name, text in shown.items() if canary.in_text(text)} == {}
    assert "most recent call first" in shown["its log"], "the crash report is there, and was searched"
    assert json.loads(answers["tables --json"].stdout)["tables"]
    assert not [path for path in [*tmp_path.rglob("core*"), *Path.cwd().glob("core.*")] if path.is_file()]


def spooled(pipeline: Pipeline, value: str) -> bool:
    """Whether the value really travels: in the Parquet files of the spool."""
    return any(value.encode() in path.read_bytes() for path in pipeline.own_spool.rglob("*.parquet"))


REFUSED = {
    "a duplicate key": ("INSERT INTO t VALUES (1, 'again')", "23505"),
    "a check": ("INSERT INTO t VALUES (2, '{row}')", "23514"),
    "a number that is none": ("SELECT '{row}'::int", "22P02"),
    "a date that is none": ("SELECT '{row}'::date", "22007"),
    "JSON that is none": ("SELECT '{row}'::json", "22P02"),
    "an exception of somebody's function": ("DO $$ BEGIN RAISE EXCEPTION 'order of {row}'; END $$", "P0001"),
    "bytes of no encoding": ("SELECT convert_from('\\xff', 'UTF8'), '{row}'", "22021"),
}


def test_what_the_server_quotes_when_it_refuses_does_not_reach_the_error(database: Database) -> None:
    database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, body text CHECK (body <> '{canary.ROW}'))",
        "INSERT INTO t VALUES (1, 'one')",
    )
    with open_query(options_of(database)) as conn:
        conn.execute("SET search_path = public")
        for what, (statement, sqlstate) in REFUSED.items():
            with pytest.raises(ServiceError, match=sqlstate) as caught, translated("trying"):
                conn.execute(statement.format(row=canary.ROW).encode())
            assert canary.in_text(f"{caught.value}{caught.value.hint}{caught.value.__cause__}") == [], what


QUOTING = "cardinality(parse_ident(body)) > 0"
"""A row filter whose error quotes the value: not every text is an identifier."""


def test_neither_a_stream_nor_a_snapshot_that_dies_of_a_row_quotes_it(
    pipeline: ingesting.IngestPipeline, database: Database
) -> None:
    since(database, 15, "row filters")
    pipeline.run(
        "CREATE TABLE t (id int PRIMARY KEY, body text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION {database.publication} FOR TABLE t WHERE ({QUOTING})",
        "INSERT INTO t VALUES (1, 'fine')",
    )
    database.execute(f"INSERT INTO t VALUES (2, '{canary.ROW}')")
    with pytest.raises(ServiceError, match="22023") as caught:
        pipeline.run()
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    of_snapshot = ingesting.IngestPipeline.local(database, pipeline.folder / "anew")
    of_snapshot.run()
    table = of_snapshot.table("public.t")
    assert (table.state, "22023" in table.reason) == ("quarantined", True)
    assert canary.in_text(f"{caught.value}{caught.value.hint}{table.reason}") == []


def test_the_decoder_quotes_nothing_of_a_message_that_it_cannot_read() -> None:
    row = wire.insert(16384, [canary.ROW.encode()])
    said = wire.message(1, "prefix", canary.ROW.encode())
    for message in (row, said):
        for length in range(1, len(message)):
            table = join([wire.xlogdata(message[:length])])
            with pytest.raises(DecodeError) as caught:
                walk_rows(table, np.arange(1), 1, in_stream=False) if message is row else decode_control(
                    table, 0, in_stream=False
                )
            assert canary.in_text(str(caught.value)) == []


def test_the_net_itself_catches(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(f"streaming {canary.ROW}")
    (tmp_path / "core.17").write_bytes(b"\0" + canary.SECRET.encode())
    (tmp_path / "sluice.yaml").write_text(canary.SECRET)
    assert sorted(finding.rpartition("/")[2] for finding in canary.in_files(tmp_path)) == [
        f"core.17 holds {canary.SECRET}",
        f"run.log holds {canary.ROW}",
    ]
    for path in tmp_path.iterdir():  # the run as a whole is searched at its end
        path.unlink()
