"""The local stack, as one evening with it: each test goes on where the one before it stopped."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.ops.local_stack import NAMES, LocalStack, alive, local_stack
from tests.support.answers import is_well, listens
from tests.support.extent import slow
from tests.support.pipeline import wait_until

_LITTLE_WAL = 16 << 20


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    with local_stack(tmp_path_factory.mktemp("local") / "stack") as created:
        yield created


def _only(first_word: str, stdout: str) -> list[str]:
    return [line.partition(":")[0] for line in stdout.splitlines() if f": {first_word}" in line]


def test_a_port_in_use_is_named_before_anything_is_started(stack: LocalStack) -> None:
    with socket.create_server(("127.0.0.1", stack.ports["APPLY_METRICS_PORT"])):
        outcome = stack("up")
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    (line,) = outcome.stderr.splitlines()
    assert "APPLY_METRICS_PORT" in line
    assert str(stack.ports["APPLY_METRICS_PORT"]) in line
    assert stack.pids() == {}


@slow
def test_a_start_that_fails_half_way_stops_what_it_had_started_and_says_why(stack: LocalStack) -> None:
    outcome = stack("up", JAVA_HOME="/nonexistent")
    assert outcome.returncode == 1
    assert _only("started", outcome.stdout) == _only("stopped", outcome.stdout) == ["postgres"]
    assert "/nonexistent/bin/java" in outcome.stderr
    assert stack.pids() == {}
    assert not listens(stack.ports["PG_PORT"])


def test_up_starts_all_of_it_and_says_where(stack: LocalStack) -> None:
    outcome = stack("up")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert _only("started", outcome.stdout) == list(NAMES)
    assert all(alive(pid) for pid in stack.pids().values())
    for variable in stack.ports:
        assert f"127.0.0.1:{stack.ports[variable]}" in outcome.stdout, variable


@slow
def test_up_again_changes_nothing_and_says_so(stack: LocalStack) -> None:
    before = stack.pids()
    outcome = stack("up")
    assert outcome.returncode == 0, outcome.stderr
    assert "nothing was changed" in outcome.stdout
    assert stack.pids() == before


@slow
def test_up_with_another_port_than_it_runs_on_is_refused(stack: LocalStack) -> None:
    outcome = stack("up", PG_PORT="1")
    assert outcome.returncode == 1
    assert f"runs on port {stack.ports['PG_PORT']}" in outcome.stderr


@slow
def test_status_shows_each_member_and_the_pipeline(stack: LocalStack) -> None:
    outcome = stack("status")
    assert outcome.returncode == 0, outcome.stderr
    for name, pid in stack.pids().items():
        assert any(name in line and str(pid) in line for line in outcome.stdout.splitlines()), name
    assert "public.order" in outcome.stdout
    as_json = stack("status", "--", "--json")
    assert json.loads(as_json.stdout)["pipeline"] == "shop"


@slow
def test_load_writes_to_the_source_for_as_long_as_it_is_asked_to(stack: LocalStack) -> None:
    with stack.connect() as connection:
        before = connection.execute("SELECT count(*) FROM events").fetchone()
        outcome = stack("load", LOAD_SECONDS="2")
        assert outcome.returncode == 0, outcome.stderr
        assert "transactions in all" in outcome.stdout
        assert connection.execute("SELECT count(*) FROM events").fetchone() != before


@slow
def test_a_member_that_was_killed_is_started_again_by_up_and_it_alone(stack: LocalStack) -> None:
    before = stack.pids()
    os.kill(before["ingest"], signal.SIGKILL)
    assert stack("status").returncode == 1
    outcome = stack("up")
    assert outcome.returncode == 0, outcome.stderr
    assert _only("started", outcome.stdout) == ["ingest"]
    after = stack.pids()
    assert {name for name in NAMES if after[name] != before[name]} == {"ingest"}


@slow
def test_an_applier_that_is_gone_holds_neither_ingest_nor_slot(stack: LocalStack) -> None:
    """It comes back in a test below."""
    os.kill(stack.pids()["applier"], signal.SIGKILL)
    with stack.connect() as connection:
        connection.execute(
            "SELECT pg_logical_emit_message(false, 'elsewhere', repeat('x', 1000000)) FROM generate_series(1, 64)"
        )
        assert stack("load", LOAD_SECONDS="4").returncode == 0
        position = _lsn(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'")
        connection.execute("CHECKPOINT")
        connection.execute("UPDATE products SET stock = stock - 1 WHERE sku = (SELECT min(sku) FROM products)")
        slot = "FROM pg_replication_slots WHERE slot_name = 'sluice_shop'"
        confirmed, kept = (
            f"SELECT confirmed_flush_lsn - '0/0' {slot}",
            f"SELECT pg_current_wal_lsn() - restart_lsn {slot}",
        )
        wait_until(lambda: _lsn(connection, confirmed) > position, what="the slot is confirmed", timeout=120)
        wait_until(lambda: _lsn(connection, kept) < _LITTLE_WAL, what="its WAL is let go", timeout=120)
    assert is_well(stack.url("METRICS_PORT", "/livez"))
    assert is_well(stack.url("METRICS_PORT", "/readyz"))


@slow
def test_logs_shows_the_last_lines_of_every_member(stack: LocalStack) -> None:
    outcome = stack("logs", FOLLOW="0")
    assert outcome.returncode == 0
    for name in NAMES:
        assert f"{name}.log" in outcome.stdout


def test_down_leaves_no_process_and_no_pid_file(stack: LocalStack) -> None:
    pids = stack.pids()
    order = ("prometheus", "applier", "ingest", "s3", "postgres")
    running = [name for name in order if name in pids and alive(pids[name])]
    outcome = stack("down")
    assert outcome.returncode == 0, outcome.stderr
    assert _only("stopped", outcome.stdout) == running
    assert not [name for name, pid in pids.items() if alive(pid)]
    assert stack.pids() == {}
    assert not _named_in_a_command_line(stack.directory)
    assert "nothing ran" in stack("down").stdout


@slow
def test_after_down_up_goes_on_and_all_that_was_ever_written_is_in_delta(stack: LocalStack) -> None:
    outcome = stack("up")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    log = (stack.directory / "logs" / "ingest.log").read_text()
    assert log.count("snapshot finished") == len(
        ["customers", "products", "orders", "order_lines", "events", "documents"]
    ), "a table was read again"
    with stack.connect() as connection:
        connection.execute("UPDATE products SET stock = stock + 1")
        orders = connection.execute("SELECT count(*) FROM orders").fetchone()
    stack.assert_the_lake_follows()
    assert orders is not None
    answer = stack("query", SQL="SELECT count(*) AS rows FROM orders")
    assert str(orders[0]) in answer.stdout, answer.stderr


@slow
def test_reset_leaves_nothing_and_says_what_it_deleted(stack: LocalStack) -> None:
    pids = stack.pids()
    home = Path(json.loads((stack.directory / "stack.json").read_text())["postgres_home"])
    outcome = stack("reset")
    assert outcome.returncode == 0, outcome.stderr
    for place in (home, stack.directory):
        assert not place.exists()
        assert str(place) in outcome.stdout
    assert not [name for name, pid in pids.items() if alive(pid)]
    assert "nothing to delete" in stack("reset").stdout


def _lsn(connection: psycopg.Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def _named_in_a_command_line(directory: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in command:
            found.append(command)
    return found
