"""`status` and `tables` for people: all facts, on any terminal, and again and again."""

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from sluice.cli import status_view
from sluice.cli.output import amount, duration
from sluice.contract import keys
from sluice.contract.applied import AppliedLog
from sluice.errors import ErrorSeen, SlotLost
from sluice.health.facts import ProcessSeen
from sluice.health.process_facts import ProcessFacts
from sluice.health.report import Report
from sluice.health.reporter import Reporter, public_uri
from sluice.health.snapshots import SnapshotReport, SnapshotRound
from sluice.health.source_history import SourceHistory
from sluice.manifest.reader import read_entry
from sluice.manifest.writer import ManifestLog
from sluice.store.base import ObjectStore
from sluice.store.memory import MemoryStore
from tests.support.command_line import Sluice
from tests.support.manifests import opened
from tests.support.recorded import NOW, RecordedPipeline, row
from tests.support.source_facts import server, slot
from tests.unit.cli.conftest import begun, table


@pytest.fixture
def pipeline() -> RecordedPipeline:
    pipeline = RecordedPipeline()
    pipeline.table("orders")
    pipeline.table("stock", state="stale", reason="rewritten by ALTER TABLE")
    pipeline.table("events", state="snapshot")
    pipeline.applied("orders", through_seq=2, complete_through_lsn=100, rows_applied=4321)
    return pipeline


def report(pipeline: RecordedPipeline, **changes: object) -> Report:
    history = SourceHistory().noted(0, 0).noted(100, 1000)
    taken = pipeline.reporter(spool_uri="s3://spool").take()
    facts = {"server": server(1000), "slot": slot(restart=200, safe=200), "history": history, **changes}
    return dataclasses.replace(taken, **facts)  # type: ignore[arg-type]


def drawn(seen: Report, *, width: int = 140, unicode: bool = True, top: int = 20) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, no_color=True, highlight=False)
    console.print(status_view.status(seen, width=width, unicode=unicode, top=top))
    return out.getvalue()


def test_status_for_people_has_every_part(pipeline: RecordedPipeline) -> None:
    copy = SnapshotRound((SnapshotReport("public.events", 50, 200, 10.0, 15.0),), 50, 5.0, 15.0)
    at = NOW.timestamp()
    noted = ErrorSeen("SourceUnavailable", "replication", "lost", "see the server's log", 3, at - 90, at - 30)
    seen = ProcessSeen("streaming", True, errors=(noted,))
    facts = ProcessFacts(seen, NOW - timedelta(hours=2), "i", 1, 900, 900, None, copy, ())
    text = drawn(report(pipeline, process=facts))
    for part in (
        "degraded, up for 2 h 0 min",
        "PostgreSQL 18.0, database d",
        "sluice_shop (reserved), publication sluice_shop",
        "s3://spool",
        "0/384",
        "The slot keeps 800 B of WAL",
        "20% of 1000 B left, enough for 20 s at 10 B/s",
        "Snapshots: 2 of 3 tables, 50 rows, 10 rows/s, 15 s left",
        "25% public.events, 50 of about 200 rows",
        "Tables: 1 live, 1 snapshot, 1 stale",
        "rewritten by ALTER TABLE",
        "warning  ingest.error  replication, 3 times, since 1 min 30 s",
        "SourceUnavailable: lost",
        "What to do: see the server's log",
    ):
        assert part in text, text


def test_status_says_what_snapshots_wait_for_and_gives_no_time_left(pipeline: RecordedPipeline) -> None:
    round_ = SnapshotRound((SnapshotReport("public.events", 50, 200, 10.0, 15.0),), 50, 5.0, 15.0, waits="too busy")
    facts = ProcessFacts(ProcessSeen("streaming", True), NOW, "i", 1, 900, 900, None, round_, ())
    text = drawn(report(pipeline, process=facts))
    assert "they wait: too busy" in text
    assert "50 rows, 10 rows/s\n" in text


def test_a_lost_slot_is_lost_whatever_else_looks_well_and_comes_first(pipeline: RecordedPipeline) -> None:
    seen = report(pipeline, lost=SlotLost("INVALIDATED: gone", hint="copy again"))
    assert seen.verdict.state == "lost"
    first = seen.to_json()["problems"][0]
    assert (first["code"], first["severity"], first["runbook"]) == ("slot.lost", "critical", "SluiceSlotLost")
    assert (first["message"], first["what_to_do"]) == ("INVALIDATED: gone", "copy again")
    assert "critical slot.lost  slot sluice_shop" in drawn(seen)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_no_table_is_left_out(pipeline: RecordedPipeline, width: int) -> None:
    text = drawn(report(pipeline), width=width)
    assert max(map(len, text.splitlines())) <= width
    flat = "".join(text.split())
    assert "public.stock" in flat
    assert "stale" in flat


def test_a_terminal_without_unicode_gets_a_bar_of_ascii(pipeline: RecordedPipeline) -> None:
    assert "[####----------------]" in drawn(report(pipeline), unicode=False)
    assert drawn(report(pipeline), unicode=False).isascii()


def test_the_way_of_commits_and_why_they_are_not_direct_is_shown(pipeline: RecordedPipeline) -> None:
    ways = {"orders": ("direct", "", 7), "stock": ("merge", "the table has no key", -1), "events": ("", "", -1)}
    rows = {
        name: row(name, through_seq=2, way=way, way_reason=reason, files=files)
        for name, (way, reason, files) in ways.items()
    }
    pipeline.said(AppliedLog(2, "a", NOW.isoformat(), rows))
    seen = report(pipeline)
    text = drawn(seen, width=250)
    assert "Ways: 1 direct, 1 merge" in text
    assert "merge: the table has no key" in text
    shown = json.loads(json.dumps(seen.to_json()))["tables"]
    found = {table["table"]: (table["way"], table["way_reason"], table["files"]) for table in shown}
    assert found == {**ways, "stock": ("merge", "the table has no key", None), "events": ("", "", None)}


def test_a_name_cannot_write_on_the_terminal(pipeline: RecordedPipeline) -> None:
    pipeline.table("\x1b[2Jgone\u202eevil", state="stale", reason="\x1b]0;owned\x07")
    text = drawn(report(pipeline))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "gone" in text


def test_what_is_worst_comes_first(pipeline: RecordedPipeline) -> None:
    pipeline.table("waiting", state="pending")
    lines = drawn(report(pipeline)).splitlines()
    shown = [line.split()[0].removeprefix("public.") for line in lines if line.startswith("public.")]
    assert shown == ["stock", "events", "waiting", "orders"]


def test_top_limits_the_tables_and_says_how_many_there_are_more(pipeline: RecordedPipeline) -> None:
    text = drawn(report(pipeline), top=1)
    assert "public.orders" not in text
    assert "... and 2 more" in text


def test_without_a_limit_the_disk_is_named(pipeline: RecordedPipeline) -> None:
    assert "the server's disk is the limit" in drawn(report(pipeline, slot=slot(restart=200, safe=None)))


def test_tables_are_sorted_and_chosen(configured: Path, sluice: Sluice) -> None:
    store, log = begun(configured)
    known = {}
    for number, (name, rows, state) in enumerate((("b", 5, "live"), ("a", 70, "live"), ("c", 9, "stale"))):
        log.append(table(str(number), name))
        record = {"table_id": str(number), "through_seq": 4, "complete_through_lsn": 100, "rows_applied": rows}
        known[str(number)] = row(name, state, **record)
    store.create(keys.apply_log(1), AppliedLog(1, "a", "2026-01-01T00:00:00+00:00", known).encode())

    def names(*arguments: str) -> list[str]:
        said = sluice("tables", "--json", *arguments, cwd=configured).stdout
        return [row["table"] for row in json.loads(said)["tables"]]

    assert names() == ["a", "b", "c"]
    assert names("--sort", "rows") == ["a", "c", "b"]
    assert names("--sort", "lag") == ["a", "b", "c"], "what has no lag to compare comes last"
    assert names("--state", "stale") == ["c"]
    assert sluice("tables", "--state", "gone", cwd=configured).returncode == 2


@pytest.fixture
def watching(configured: Path) -> Iterator["subprocess.Popen[str]"]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    command = [sys.executable, "-m", "sluice", "status", "--watch", "--interval", "0.1"]
    # A shell that runs the tests in the background lets them, and all below them, ignore Ctrl-C.
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    process = subprocess.Popen(
        [*command, "-c", str(configured / "sluice.yaml")],
        cwd=Path(__file__).parents[3],
        env={**environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=heard,
    )
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_watch_without_a_terminal_writes_one_block_after_the_other(watching: "subprocess.Popen[str]") -> None:
    assert watching.stdout is not None
    heads = 0
    while heads < 2 and (line := watching.stdout.readline()):
        heads += line.startswith("Pipeline")
    assert heads == 2
    watching.send_signal(signal.SIGINT)
    # It may be writing: nobody ends while the pipe is full.
    watching.communicate(timeout=180)
    assert watching.returncode in (0, 130)


def test_addresses_are_shown_without_what_may_be_secret() -> None:
    assert public_uri("s3://key:secret@bucket/a?token=x#y") == "s3://bucket/a"
    assert public_uri("file:///var/lib/spool") == "file:///var/lib/spool"
    assert public_uri("memory://") == "memory://"


def test_durations_have_two_units_at_most_and_amounts_are_binary() -> None:
    said = [duration(seconds) for seconds in (None, 0, 0.04, 59.4, 61, 7260, 266400, 1e12)]
    assert said == ["-", "0 s", "0.0 s", "59 s", "1 min 1 s", "2 h 1 min", "3 d 2 h", "more than 1000 d"]
    assert [amount(count) for count in (None, 0, 1023, 1024, 1 << 40)] == ["-", "0 B", "1023 B", "1.0 KiB", "1.0 TiB"]


def test_the_present_epoch_began_with_its_own_entry(pipeline: RecordedPipeline) -> None:
    def opened_at(store: ObjectStore = pipeline.store) -> datetime | None:
        return Reporter(pipeline="shop", store=store, lake_uri="file:///lake", source=None).take().opened_at

    assert opened_at(MemoryStore("status-nothing", prefix="shop/")) is None
    first = read_entry(pipeline.store, 1)
    assert first is not None
    assert opened_at() == datetime.fromisoformat(first.written_at)
    pipeline.log = ManifestLog.open(pipeline.store, opened(), pipeline.log.state, through_lsn=100)
    pipeline.table("more")
    second = read_entry(pipeline.store, pipeline.log.state.seq - 1)
    assert second is not None
    assert opened_at() == datetime.fromisoformat(second.written_at)


def test_the_rows_of_a_fleet_show_names_and_errors_as_they_are(sluice: Sluice, configured: Path) -> None:
    text = (configured / "sluice.yaml").read_text()
    folder = configured / "fleet"
    folder.mkdir()
    (folder / "well.yaml").write_text(text)
    (folder / "wrong.yaml").write_text(text.replace("pipeline: shop", 'pipeline: "[/b]"'))
    ended = sluice("status", "--fleet", str(folder))
    assert ended.returncode == 12, ended.stderr
    assert "pipeline: must match ^[a-z0-9_]{1,50}$ (given: '[/b]')" in ended.stdout
    assert "unknown: server.unreachable" in ended.stdout
