"""`setup`, `run`, `status` against a real server: what they create, what they say, how they end.

Commands that end run in this process; what is looked at while it runs is a process of its own.
"""

import json
import re
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from sluice.health.verdict import STATES
from tests.support.answers import ask
from tests.support.authority import Authority
from tests.support.command_line import Sluice
from tests.support.extent import slow
from tests.support.pipeline import wait_until
from tests.support.sources import Database
from tools.local.ports import free_port


def slots(database: Database) -> int:
    return len(database.all("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", database.slot))


def test_the_slot_is_shown_advanced_within_the_manifest_only_and_dropped_by_its_own_name(
    sluice: Sluice, running: "subprocess.Popen[str]", database: Database
) -> None:
    def carried() -> bool:
        tables = json.loads(sluice("tables", "--json").stdout)["tables"]
        streams = json.loads(sluice("slot", "show", "--json").stdout).get("active_pid") is not None
        return streams and [table["snapshot_rows"] for table in tables] == [1]

    wait_until(carried, what="it streams, and the table is read", timeout=60)
    busy = sluice("slot", "drop", "--confirm", database.slot)
    assert (busy.returncode, slots(database)) == (8, 1)
    running.send_signal(signal.SIGTERM)
    assert running.wait(180) == 0
    shown = json.loads(sluice("slot", "show", "--json").stdout)
    assert (shown["exists"], shown["problem"]) == (True, None)
    beyond = sluice("slot", "advance", "--to", "F/0", "--confirm", database.slot)
    assert beyond.returncode == 2
    assert shown["manifest_through_lsn"] in beyond.stderr
    assert sluice("slot", "advance", "--to", shown["manifest_through_lsn"], "--confirm", "another").returncode == 2
    assert sluice("slot", "advance", "--to", shown["manifest_through_lsn"], "--confirm", database.slot).returncode == 0
    assert sluice("slot", "drop", "--confirm", "another").returncode == 2
    assert slots(database) == 1
    assert sluice("slot", "drop", "--confirm", database.slot).returncode == 0
    assert slots(database) == 0
    assert json.loads(sluice("slot", "show", "--json").stdout)["problem"].startswith("MISSING")
    assert sluice("slot", "recreate", "--confirm", "another").returncode == 2
    assert slots(database) == 0
    recreated = sluice("slot", "recreate", "--confirm", database.slot)
    assert (recreated.returncode, slots(database)) == (0, 1)
    assert "has a gap; `sluice verify --repair` closes it" in recreated.stdout
    tables = json.loads(sluice("tables", "--json").stdout)["tables"]
    assert "gap" in {table["state"] for table in tables}
    assert json.loads(sluice("slot", "show", "--json").stdout)["problem"] is None
    assert sluice("slot", "recreate", "--confirm", database.slot).returncode == 2
    assert sluice("run", "--until-caught-up").returncode == 0


def test_a_dry_run_creates_nothing_and_its_sql_is_all_that_is_needed(sluice: Sluice, database: Database) -> None:
    planned = json.loads(sluice("setup", "--dry-run", "--json").stdout)
    assert [(step["kind"], bool(step["statement"])) for step in planned["steps"]] == [
        ("publication", True),
        ("slot", True),
    ]
    assert slots(database) == 0
    statements = sluice("setup", "--print-sql")
    assert statements.returncode == 0
    assert slots(database) == 0
    database.execute(*filter(str.strip, statements.stdout.split(";\n")))
    assert slots(database) == 1
    again = sluice("setup", "--json")
    assert again.returncode == 0
    assert [step["statement"] for step in json.loads(again.stdout)["steps"]] == ["", ""]


def test_the_ddl_signal_is_printed_and_created_only_when_that_is_asked_for(sluice: Sluice, database: Database) -> None:
    def triggers() -> int:
        with database.connect() as connection:
            return connection.execute("SELECT FROM pg_event_trigger").rowcount

    printed = sluice("setup", "--ddl-signal")
    assert (printed.returncode, triggers()) == (0, 0)
    assert (
        sluice("setup", "--apply").returncode == sluice("setup", "--ddl-signal", "--apply", "--dry-run").returncode == 2
    )
    assert (sluice("setup").returncode, triggers()) == (0, 0)
    database.execute(printed.stdout)
    assert triggers() == 3
    assert sluice("setup", "--ddl-signal", "--apply").stdout == "It was there.\n"
    removed = Path("docs/how-to/ddl-signal.md").read_text(encoding="utf-8").rsplit("```sql\n")[-1].partition("```")[0]
    database.execute(removed)
    assert triggers() == 0
    created = json.loads(sluice("setup", "--ddl-signal", "--apply", "--json").stdout)
    assert (created["created"], all(step["statement"] for step in created["steps"]), triggers()) == (True, True, 3)
    checked = json.loads(sluice("check", "--json").stdout)
    assert "source.ddl_signal" not in {finding["code"] for finding in checked["findings"]}


def test_the_script_of_check_is_what_it_says_whatever_a_table_is_called(
    sluice: Sluice, database: Database, tmp_path: Path
) -> None:
    database.execute('CREATE TABLE "no\nDROP TABLE orders; key" (v int)')
    fixed = sluice("check", "--sql-out", str(tmp_path / "fix.sql"))
    script = (tmp_path / "fix.sql").read_text(encoding="utf-8")
    assert "no" in fixed.stdout
    assert "REPLICA IDENTITY" in script
    statements = re.split(r"^-- .*\n", script, flags=re.MULTILINE)
    statements = [one for one in statements if one and not one.startswith("ALTER SYSTEM")]
    assert len(statements) >= 2
    database.execute(*statements)
    assert database.one("SELECT count(*) FROM orders") == (1,)


def streaming(running: "subprocess.Popen[str]") -> str:
    """The address of its endpoints, once it streams."""
    assert running.stderr is not None
    address = ""
    for line in running.stderr:
        event = json.loads(line)
        address = event.get("address", address)
        if event["event"] == "streaming":
            break
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
    return address


def test_probes_and_metrics_are_served_while_it_runs_and_a_signal_drains(running: "subprocess.Popen[str]") -> None:
    address = streaming(running)

    get = partial(ask, address)
    assert get("/startupz")[0] == 200
    assert get("/livez")[0] == 200
    deadline = time.monotonic() + 30
    while get("/readyz")[0] != 200 and time.monotonic() < deadline:
        pass  # an answer may be a second old
    assert get("/readyz")[0] == 200
    assert json.loads(get("/status")[1])["state"] == "healthy", "an applier may still begin"
    assert 'sluice_build_info{component="ingest",pipeline="shop"' in get("/metrics")[1]
    running.send_signal(signal.SIGTERM)
    assert running.wait(180) == 0


@pytest.fixture
def authority(environment: dict[str, str], tmp_path: Path) -> Authority:
    """What `sluice run` has a certificate of, asks clients for one of, and is a neighbour of itself by."""
    authority = Authority(tmp_path, "one")
    cert, key = authority.pair("ingest")
    port = free_port()
    environment.update(
        SLUICE_TELEMETRY__LISTEN=f"127.0.0.1:{port}",
        SLUICE_TELEMETRY__TLS_CERT_PATH=str(cert),
        SLUICE_TELEMETRY__TLS_KEY_PATH=str(key),
        SLUICE_TELEMETRY__TLS_CLIENT_CA_PATH=str(authority.path),
        SLUICE_TELEMETRY__PIPELINES__ITSELF=f"https://localhost:{port}",
        SLUICE_TELEMETRY__RUNBOOK_URL="https://wiki.example.com/sluice/",
        SSL_CERT_FILE=str(authority.path),
    )
    return authority


@slow
def test_a_run_with_certificates_is_read_by_its_clients_and_asked_by_its_neighbours(
    authority: Authority, running: "subprocess.Popen[str]"
) -> None:
    address, known = streaming(running), authority.pair("prometheus")
    assert authority.get(address, "/livez") == (200, "ok\n")
    assert {authority.get(address, path)[0] for path in ("/", "/metrics", "/status", "/history")} == {403}
    state, deadline = "", time.monotonic() + 60
    while not state and time.monotonic() < deadline:
        process = json.loads(authority.get(address, "/status", certificate=known)[1])["process"]
        (itself,) = process["neighbours"]
        state = itself["state"]
    assert state in STATES
    assert process["runbook_url"] == "https://wiki.example.com/sluice"
    said = json.loads(authority.get(address, "/history?table=public.orders", certificate=known)[1])
    assert (said["step_seconds"], len(said["pipeline"]["lag_seconds"]) > 0) == (120, True)
