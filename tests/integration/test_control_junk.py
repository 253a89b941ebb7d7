"""Junk below control/: whatever people or tools leave there, ingest and every report go on, at
every restart.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

from sluice.contract.control import RESYNC, Request
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


def leave_junk(pipe: Pipe) -> None:
    for path, content in JUNK.items():
        junk = pipe.folder / "spool" / "shop" / "control" / path
        junk.parent.mkdir(parents=True, exist_ok=True)
        junk.write_text(content)


def test_junk_below_control_stops_neither_ingest_nor_status_nor_a_request_behind_it(
    database: Database, tmp_path: Path
) -> None:
    orders(database)
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.applied()
        leave_junk(pipe)
        status = pipe("status", "--json")
        # A refusal of unknown form is a problem that the applier's record does not hide.
        assert status.returncode in (0, 9), status.stdout + status.stderr
        request = tmp_path / "spool/shop/control/zz.json"
        request.write_bytes(Request(RESYNC, "public", "orders", datetime.now(UTC).isoformat()).encode())
        pipe.wait(lambda: not request.exists(), 120)
        named = [event["key"] for event in pipe.events() if event["event"] == "an object below control/ is left alone"]
        assert sorted(named) == sorted(
            ascii(f"control/{path}"[:200]) for path in ("back\\slash.json", "x" * 250, "below/a/folder.json")
        )
        pipe.live()
        again = pipe("status", "--json")
        assert again.returncode in (0, 9), again.stdout + again.stderr
        assert pipe.process is not None
        assert pipe.process.poll() is None


def test_ingest_starts_with_junk_below_control(database: Database, tmp_path: Path) -> None:
    orders(database)
    pipe = Pipe(database, tmp_path)
    leave_junk(pipe)
    ended = pipe("run", "--until-caught-up")
    assert ended.returncode == 0, ended.stderr
    assert pipe("status", "--json").returncode in (9, 10)
