"""A manifest that is damaged: do `check`, `status` and `run` say the same?"""

import json
import time
from pathlib import Path

import pytest

from tests.support.looks import Pipe, orders
from tests.support.sources import Database


@pytest.mark.parametrize("how", ["hole", "corrupt", "apply"])
def test_check_does_not_call_a_damaged_pipeline_ready(database: Database, tmp_path: Path, how: str) -> None:
    orders(database)
    pipe = Pipe(database, tmp_path)
    assert pipe("run", "--until-caught-up").returncode == 0
    pipe.applied()
    entries = sorted((tmp_path / "spool/shop/manifest").glob("0*.json"))
    if how == "hole":
        entries[1].unlink()
    elif how == "corrupt":
        entries[1].write_text("{}")
    else:
        (tmp_path / "spool/shop/apply/log/0000000000000001.json").write_text("{}")
    codes = {command: pipe(*command.split()) for command in ("status --json", "check --json", "run --until-caught-up", "tables", "slot show", "spool verify")}
    for command, ended in codes.items():
        print(command, ended.returncode, ended.stderr[-250:])
    print(json.loads(codes["check --json"].stdout)["state"], json.loads(codes["status --json"].stdout)["headline"])
    assert codes["check --json"].returncode != 0


def test_a_spool_that_is_gone_without_an_applier_is_not_healthy(database: Database, tmp_path: Path) -> None:
    orders(database)
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.wait(lambda: "applier.never" in pipe.get("/readyz")[1])
        for file in [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]:
            file.unlink()
        said = []
        for _ in range(16):
            time.sleep(2)
            code, text = pipe.get("/status")
            page = json.loads(text)
            said.append(page.get("state"))
            print(code, page.get("state"), [p["code"] for p in page.get("problems", [])], pipe.get("/readyz")[0], pipe.health(), len(page.get("tables", [])), flush=True)
        print("EXIT", pipe.process.poll() if pipe.process else None, pipe.log.read_text()[-300:], pipe("status").returncode)
        assert "healthy" not in said
