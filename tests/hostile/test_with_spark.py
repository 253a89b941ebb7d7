"""One real `sluice up`: a lake that cannot be written from the start, then a lake whose folder vanishes while nothing changes."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

from tests.support.looks import Pipe, orders
from tests.support.sources import Database


def test_a_lake_that_cannot_be_written_and_a_lake_that_vanishes_are_not_healthy(database: Database, tmp_path: Path) -> None:
    orders(database)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "public").write_text("a file where a folder must be")
    seen: dict[str, list[Any]] = {"blocked": [], "gone": [], "changed": []}

    def note(what: str) -> None:
        ended, answer = pipe("status", "--json"), pipe.get("/status")
        if not (ended.stdout.startswith("{") and answer[1].startswith("{")):
            print(what, "NO ANSWER", ended, answer, pipe.process and pipe.process.poll(), pipe.log.read_text()[-1500:], flush=True)
            return
        document, page = json.loads(ended.stdout), json.loads(answer[1])
        seen[what].append((document["state"], page["state"], [(p["code"], p["severity"], p["message"][:150]) for p in page["problems"]], pipe.health()[:1]))
        print(what, time.strftime("%T"), seen[what][-1], flush=True)

    with Pipe(database, tmp_path, extra='apply: {spark_master: "local[1]", driver_memory: 1GiB}').start("up").streaming().live() as pipe:
        pipe.wait(lambda: (tmp_path / "spool/shop/apply/log").exists() and any((tmp_path / "spool/shop/apply/log").iterdir()), 120)
        for _ in range(6):
            note("blocked")
            time.sleep(10)
        (tmp_path / "lake" / "public").unlink()
        pipe.wait(lambda: json.loads(pipe("status", "--json").stdout)["state"] == "healthy" and not json.loads(pipe("status", "--json").stdout)["problems"], 120)
        shutil.rmtree(tmp_path / "lake")
        for _ in range(4):
            time.sleep(10)
            note("gone")
        print("check", (ended := pipe("check")).returncode, ended.stdout[-300:], ended.stderr)
        database.execute("INSERT INTO orders VALUES (2, 'b')")
        for _ in range(4):
            time.sleep(8)
            note("changed")
        print(sorted(str(p.relative_to(tmp_path)) for p in (tmp_path / "lake").rglob("*"))[:8])
        print([e for e in pipe.events() if e.get("level") in ("warning", "error")][-4:])
    assert "healthy" not in [one[1] for one in seen["blocked"]]
    assert "healthy" not in [one[1] for one in seen["gone"]]
