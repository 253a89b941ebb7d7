"""The verdict on a real pipeline: what stands still, is lost or was mistyped is said by every
command, and by its exit code.
"""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from sluice.contract import keys
from sluice.contract.applied import AppliedLog
from sluice.contract.control import RESYNC, Request
from sluice.contract.table_state import State
from sluice.manifest.reader import load_state
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from tests.support.command_line import Ended, Sluice
from tests.support.extent import cases, slow
from tests.support.pipeline import wait_until
from tests.support.recorded import rows
from tests.support.sources import Database


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}/spool", prefix="shop/", options={})


def applied(store: ObjectStore, *, seconds_ago: float = 0, state: str = "live", number: int = 1) -> None:
    """The applier's record: everything that is in the manifest now is in the lake."""
    at = (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat()
    log = AppliedLog(number, "host/1/a", at, rows(load_state(store), state), at)
    store.create(keys.apply_log(number), log.encode())


def codes(document: dict[str, list[dict[str, str]]]) -> set[str]:
    return {problem["code"] for problem in document["problems"]}


def wait_for_streaming(sluice: Sluice, store: ObjectStore) -> None:
    """Until it streams, and has read its tables."""

    def streams() -> bool:
        states = {table.state for table in load_state(store).tables.values()}
        return states == {State.LIVE} and json.loads(sluice("slot", "show", "--json").stdout)["active_pid"] is not None

    wait_until(streams, what="it streams", timeout=90)


def test_an_applier_that_was_killed_ten_minutes_ago_is_a_problem_and_not_exit_0(
    sluice: Sluice, running: object, store: ObjectStore
) -> None:
    wait_for_streaming(sluice, store)
    applied(store)
    ended = sluice("status", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["state"]) == (0, "healthy"), ended.stdout
    applied(store, seconds_ago=600, number=2)
    ended = sluice("status", "--json")
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["state"]) == (9, "degraded")
    (dead,) = [problem for problem in document["problems"] if problem["code"] == "applier.dead"]
    assert dead["severity"] == "critical"
    assert dead["age_seconds"] >= 600
    assert dead["what_to_do"]
    assert "applier.dead" in sluice("status").stdout
    assert "applier.dead" in sluice("tables").stderr


@slow
def test_a_pipeline_that_does_not_run_is_stopped_and_check_of_it_passes(sluice: Sluice, store: ObjectStore) -> None:
    new = sluice("status", "--json")
    assert (new.returncode, json.loads(new.stdout)["state"]) == (11, "new")
    assert sluice("run", "--until-caught-up").returncode == 0
    applied(store)
    stopped = sluice("status", "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)["state"]) == (10, "stopped")
    assert codes(json.loads(stopped.stdout)) == {"ingest.stopped"}
    checked = sluice("check", "--json")
    assert (checked.returncode, json.loads(checked.stdout)["state"]) == (0, "stopped")
    problems = [finding for finding in json.loads(checked.stdout)["findings"] if finding["code"] == "pipeline.problem"]
    assert [(finding["severity"], "[ingest.stopped]" in finding["seen"]) for finding in problems] == [("info", True)]


def critical(ended: Ended, *, code: str) -> list[str]:
    return [
        one["seen"]
        for one in json.loads(ended.stdout)["findings"]
        if one["severity"] == "critical" and f"[{code}]" in one["seen"]
    ]


@pytest.mark.parametrize("how", cases(["hole", "corrupt", "apply", "time"], quick=["hole"]))
def test_check_does_not_call_a_damaged_spool_ready(
    sluice: Sluice, store: ObjectStore, tmp_path: Path, how: str
) -> None:
    assert sluice("run", "--until-caught-up").returncode == 0
    applied(store)
    (record,) = (tmp_path / "spool/shop/apply/log").iterdir()
    entry = sorted((tmp_path / "spool/shop/manifest").glob("0*.json"))[1]
    if how == "hole":
        entry.unlink()
    elif how == "corrupt":
        entry.write_text("{}")
    elif how == "apply":
        record.write_text("{}")
    else:
        record.write_text(json.dumps({**json.loads(record.read_text()), "written_at": "not a time"}))
    checked, seen = sluice("check", "--json"), sluice("status", "--json")
    assert (checked.returncode, len(critical(checked, code="spool.unreadable"))) == (3, 1), checked.stderr
    assert (seen.returncode, codes(json.loads(seen.stdout))) == (12, {"spool.unreadable"})


@slow
def test_check_calls_a_stale_table_as_critical_as_status_does(sluice: Sluice, store: ObjectStore) -> None:
    assert sluice("run", "--until-caught-up").returncode == 0
    applied(store, state="stale")
    checked = sluice("check", "--json")
    assert (checked.returncode, len(critical(checked, code="table.stale"))) == (3, 1), checked.stdout


def test_a_foreign_client_of_the_slot_is_named_and_not_taken_for_ingest(
    sluice: Sluice, database: Database, store: ObjectStore
) -> None:
    assert sluice("run", "--until-caught-up").returncode == 0
    applied(store)
    dsn = database.server.dsn(dbname=database.name)
    with psycopg.connect(dsn, replication="database", autocommit=True, application_name="pg_recvlogical") as stranger:
        start = (
            f"START_REPLICATION SLOT {database.slot} LOGICAL 0/0 (proto_version '1', publication_names "
            f"'{database.publication}')"
        )
        stranger.pgconn.send_query(start.encode())
        wait_for_streaming(sluice, store)
        seen = sluice("status", "--json")
        stranger.pgconn.finish()
    document = json.loads(seen.stdout)
    assert (seen.returncode, codes(document)) == (10, {"slot.foreign", "ingest.stopped"})
    assert "pg_recvlogical" in next(
        problem["message"] for problem in document["problems"] if problem["code"] == "slot.foreign"
    )


def test_a_spool_that_is_gone_is_not_a_new_pipeline(sluice: Sluice, database: Database, tmp_path: Path) -> None:
    assert sluice("setup").returncode == 0
    assert sluice("status").returncode == 11, "nobody has used the slot yet"
    database.execute("INSERT INTO orders VALUES (2, 'b')")
    assert sluice("run", "--until-caught-up").returncode == 0
    shutil.rmtree(tmp_path / "spool")
    seen, checked = sluice("status", "--json"), sluice("check", "--json")
    assert (seen.returncode, codes(json.loads(seen.stdout))) == (12, {"spool.gone"})
    assert (checked.returncode, len(critical(checked, code="spool.gone"))) == (3, 1)


def test_a_table_that_nobody_publishes_is_not_read_and_the_nearest_is_named(
    sluice: Sluice, database: Database, store: ObjectStore
) -> None:
    assert sluice("run", "--until-caught-up").returncode == 0
    database.execute("CREATE TABLE aside (id int PRIMARY KEY)")
    for name in ("public.ordres", "public.aside"):
        ended = sluice("resync", name)
        assert (ended.returncode, "will be resynced" in ended.stdout) == (2, False), name
    assert "public.orders" in sluice("resync", "public.ordres").stderr
    assert not tuple(store.list(keys.CONTROL))
    assert sluice("resync", "public.orders").returncode == 0
    assert len(tuple(store.list(keys.CONTROL))) == 1


@slow
def test_a_request_that_ingest_refuses_is_a_problem_until_it_is_carried_out(
    sluice: Sluice, running: object, database: Database, store: ObjectStore
) -> None:
    wait_for_streaming(sluice, store)
    # As if it had been dropped between the command's look and ingest's.
    store.create(keys.control_request("one"), Request(RESYNC, "public", "gone", datetime.now(UTC).isoformat()).encode())
    wait_until(lambda: "request.refused" in codes(json.loads(sluice("status", "--json").stdout)), what="it is refused")
    document = json.loads(sluice("status", "--json").stdout)
    (refused,) = [problem for problem in document["problems"] if problem["code"] == "request.refused"]
    assert refused["where"] == "public.gone"
    assert refused["since"]
    database.execute(
        "CREATE TABLE gone (id int PRIMARY KEY)", f"ALTER PUBLICATION {database.publication} ADD TABLE gone"
    )
    assert sluice("resync", "public.gone").returncode == 0
    wait_until(lambda: "request.refused" not in codes(json.loads(sluice("status", "--json").stdout)), what="it is done")
