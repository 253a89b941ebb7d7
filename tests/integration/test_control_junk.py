"""Junk below control/: whatever people or tools leave there, ingest and every report go on, at
every restart.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

from sluice.contract.control import RESYNC, Request
from tests.support.command_line import Sluice
from tests.support.sources import Database
from tests.support.surfaces import Pipe, orders

REFUSAL = {
    "format_version": 1,
    "action": "resync",
    "table": "public.x",
    "reason": "r",
    "hint": "h",
    "refused_at": "yesterday",
}
JUNK = {
    "refused/text.json": json.dumps(REFUSAL),
    "refused/naive.json": json.dumps({**REFUSAL, "refused_at": "2026-11-22T00:00:00"}),
    "refused/number.json": json.dumps({**REFUSAL, "refused_at": 5}),
    "refused/list.json": "[]",
    "back\\slash.json": "{}",
    "deep.json": "[" * 100_000,
    "numbers.json": json.dumps(
        {"format_version": 1, "action": RESYNC, "schema_name": 1, "table_name": [], "requested_at": None}
    ),
    "x" * 250: "{}",
    "below/a/folder.json": "{}",
}


def leave_junk(pipe: Pipe, *paths: str) -> None:
    for path in paths:
        junk = pipe.folder / "spool" / "shop" / "control" / path
        junk.parent.mkdir(parents=True, exist_ok=True)
        junk.write_text(JUNK[path])


def test_junk_below_control_stops_no_start_nor_status_nor_a_request_behind_it(
    database: Database, tmp_path: Path, command: Sluice
) -> None:
    """Some of it is there before ingest starts, and some comes while it runs."""
    orders(database)
    pipe = Pipe(database, tmp_path, command=command)
    leave_junk(pipe, *list(JUNK)[::2])
    with pipe.start().streaming().live():
        assert pipe("status", "--json").returncode == 9
        pipe.applied()
        leave_junk(pipe, *list(JUNK)[1::2])
        status = pipe("status", "--json")
        # A refusal of unknown form is a problem that the applier's record does not hide.
        assert status.returncode in (0, 9), status.stdout + status.stderr
        request = tmp_path / "spool/shop/control/zz.json"
        request.write_bytes(Request(RESYNC, "public", "orders", datetime.now(UTC).isoformat()).encode())
        pipe.wait(lambda: not request.exists(), 120)
        left = {"back\\slash.json", "x" * 250, "below/a/folder.json"}
        pipe.wait(lambda: named(pipe) == {ascii(f"control/{path}"[:200]) for path in left})
        pipe.live()
        again = pipe("status", "--json")
        assert again.returncode in (0, 9), again.stdout + again.stderr
        assert pipe.process is not None
        assert pipe.process.poll() is None


def named(pipe: Pipe) -> set[str]:
    """Objects of which ingest has said that it leaves them alone."""
    return {event["key"] for event in pipe.events() if event["event"] == "an object below control/ is left alone"}
