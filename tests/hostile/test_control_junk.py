"""Junk below control/: what people or tools may leave there."""

import json
import time
from pathlib import Path

import pytest

from tests.hostile.looks import Pipe, orders
from tests.support.sources import Database

REFUSAL = {"format_version": 1, "table": "public.x", "reason": "r", "hint": "h", "refused_at": "yesterday"}


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("control/refused/a.json", json.dumps(REFUSAL)),
        ("control/refused/a.json", json.dumps({**REFUSAL, "refused_at": "2026-11-22T00:00:00"})),
        ("control/refused/a.json", json.dumps({**REFUSAL, "refused_at": 5})),
        ("control/back\\slash.json", "{}"),
        ("control/deep.json", "[" * 100_000),
        ("control/" + "x" * 250, "{}"),
    ],
    ids=["refused-at-junk", "refused-at-naive", "refused-at-number", "backslash", "deep", "long-name"],
)
def test_junk_in_control_never_stops_ingest_nor_status(database: Database, tmp_path: Path, path: str, content: str) -> None:
    orders(database)
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.applied()
        junk = tmp_path / "spool" / "shop" / path
        junk.parent.mkdir(parents=True, exist_ok=True)
        junk.write_text(content)
        status = pipe("status", "--json")
        time.sleep(14)
        assert pipe.process is not None
        code = pipe.process.poll()
        again = None
        if code is not None:
            again = pipe("run", "--until-caught-up").returncode
        print("status", status.returncode, status.stdout[-400:], status.stderr[-400:], "\ningest", code, "again", again, pipe.log.read_text()[-800:])
        assert (status.returncode, code) == (0, None)
