"""Commands that report, and a process that runs, while the object store accepts connections and never answers;
and what a bare `sluice` says.
"""

import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.cli.deadline import LOOK_SECONDS
from sluice.health import live_report
from sluice.health.endpoint import Health
from sluice.health.live_report import LiveReport
from sluice.health.process_state import ProcessState
from sluice.health.reporter import Reporter
from sluice.ingest.status import IngestStatus
from sluice.store.memory import MemoryStore
from sluice.telemetry.metrics import Metrics
from sluice.telemetry.recent_errors import RecentErrors
from tests.support.commands import assert_ended
from tests.support.extent import slow
from tests.support.manifests import open_log
from tests.support.offered import publish
from tests.support.sources import Database
from tests.support.surfaces import Pipe


@contextmanager
def _silent(database: Database, folder: Path) -> Iterator[Pipe]:
    """Its spool is where somebody accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pipe = Pipe(database, folder, spool="s3://bucket/spool")
        options = {
            "aws_endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "allow_http": "true",
            "aws_access_key_id": "x",
            "aws_secret_access_key": "y",
            "aws_region": "us-east-1",
        }
        pipe.environment |= {f"SLUICE_SPOOL__OPTIONS__{name.upper()}": value for name, value in options.items()}
        yield pipe


@slow
def test_status_and_tables_say_within_a_bound_that_the_store_does_not_answer(
    database: Database, tmp_path: Path
) -> None:
    with _silent(database, tmp_path) as pipe:
        began = time.monotonic()
        status = pipe("status", "--json")
        assert_ended(status, 12)
        assert "does not answer" in json.loads(status.stdout)["problems"][0]["message"]
        assert_ended(pipe("tables"), 75, "does not answer")
        assert time.monotonic() - began < 2 * (LOOK_SECONDS + 15)


@slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("setup",), "whether the pipeline has run before is not known, and nothing was created"),
        (("plan",), "what the lake tables were made of is not known"),
        (("spool", "ls"), "the object store accepts connections and does not answer"),
        (("slot", "advance", "--to", "0/A", "--confirm", "{slot}"), "the object store accepts connections"),
    ],
    ids=["setup", "plan", "spool ls", "slot advance"],
)
def test_a_command_that_needs_the_manifest_says_within_a_bound_what_is_not_known(
    database: Database, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with _silent(database, tmp_path) as pipe:
        began = time.monotonic()
        assert_ended(pipe(*(word.format(slot=database.slot) for word in arguments)), 75, said)
        assert time.monotonic() - began < LOOK_SECONDS + 15  # a request of the library takes 75 s
    assert database.published() == []
    assert database.all("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", database.slot) == []


@slow
def test_the_slot_is_shown_within_a_bound_though_the_store_does_not_answer(database: Database, tmp_path: Path) -> None:
    database.execute(f"SELECT pg_create_logical_replication_slot('{database.slot}', 'pgoutput')")
    with _silent(database, tmp_path) as pipe:
        began = time.monotonic()
        shown = pipe("slot", "show", "--json")
        assert_ended(shown, 75, "does not answer")
        assert time.monotonic() - began < LOOK_SECONDS + 15
    facts = json.loads(shown.stdout)
    assert (facts["slot"], facts["exists"], facts["manifest_through_lsn"]) == (database.slot, True, None)
    assert facts["problem"].startswith("whether the pipeline can go on from it is not known")


@slow
def test_check_waits_once_for_a_store_that_hangs(database: Database, tmp_path: Path) -> None:
    with _silent(database, tmp_path) as pipe:
        began = time.monotonic()
        assert_ended(pipe("check"), 3, "critical finding")
        assert time.monotonic() - began < 145  # a request of the library takes 75 s, and there are several


@slow
def test_a_request_ends_at_its_deadline_while_the_store_hangs(database: Database, tmp_path: Path) -> None:
    with _silent(database, tmp_path) as pipe:
        began = time.monotonic()
        assert_ended(pipe("tables", "pause", "public.t"), 75, "does not answer")
        assert time.monotonic() - began < LOOK_SECONDS + 25  # a request of the library takes 75 s


@pytest.mark.parametrize("position", [("--now",), ("--lsn", "0/A")])
def test_a_wait_is_not_held_up_by_a_spool_that_hangs(
    database: Database, tmp_path: Path, position: tuple[str, ...]
) -> None:
    """Of the spool it asks which server the position may be of."""
    publish(tmp_path / "lake", 1, 0xA)
    with _silent(database, tmp_path) as pipe:
        began = time.monotonic()
        assert_ended(pipe("wait", *position, "--timeout", "1s"), 75, "does not answer")
        assert time.monotonic() - began < 30


def test_a_bare_sluice_shows_its_help_and_no_error(database: Database, tmp_path: Path) -> None:
    for arguments in ((), ("spool",)):
        ended = Pipe(database, tmp_path)(*arguments)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith("Usage: sluice")
        assert "hint:" not in ended.stderr


class _Hanging(MemoryStore):
    """Answers nothing while `held` is set."""

    held = False
    answers = threading.Event()

    def get(self, key: str) -> bytes:
        if self.held:
            self.answers.wait(120)
        return super().get(key)


def test_a_process_whose_store_hangs_is_not_healthy_once_status_would_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert live_report._HANGS_SECONDS == LOOK_SECONDS
    monkeypatch.setattr(live_report, "_HANGS_SECONDS", 2.0)
    store = _Hanging(f"hangs-{uuid.uuid4().hex}", prefix="t/")
    log = open_log(store)
    status = IngestStatus(state="streaming", connected=True, manifest=log.state)
    reporter = Reporter(pipeline="t", store=store, lake_uri="file:///nowhere", source=None)
    live = LiveReport(
        status=status,
        reporter=reporter,
        process_state=ProcessState(status, RecentErrors(), None),
        health=Health(Metrics("t")),
    )
    live.take(asked_within_seconds=60)
    assert live.verdict().state == "healthy"
    store.held = True
    tick = threading.Event()
    tick.wait(1.1)  # a report is fresh for a second
    look = threading.Thread(target=lambda: live.take(asked_within_seconds=60), daemon=True)
    look.start()
    for _ in range(250):
        if live.verdict().state != "healthy":
            break
        tick.wait(0.1)
    assert [problem.code for problem in live.verdict().problems] == ["spool.away"]
    store.held = False
    store.answers.set()
    look.join(30)
    assert live.verdict().state == "healthy"
