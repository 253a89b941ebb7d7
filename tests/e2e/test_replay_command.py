"""`sluice replay` as a process, beside a pipeline that runs: killed in the middle and given again it makes the
tables of the boundary that the living lake states, and the pipeline does not notice.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.contract.lease import Holder
from sluice.lsn import show as lsn_text
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from sluice_lake import Lake
from tests.e2e.readers import ACCOUNTS, TOTAL, Transfers, bank, newest_of
from tests.support.extent import slow
from tests.support.pipeline import must, wait_until
from tests.support.sources import Bucket, Database
from tools.local.sluice import Pipeline

pytestmark = pytest.mark.timeout(1800)
NAMES = ("checking", "savings")


def _replayed(pipeline: Pipeline, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(must(pipeline, "replay", *arguments, timeout=900))
    return answer


def _rows(lake: Lake, lsn: str) -> dict[str, list[str]]:
    now = lake.as_of(lsn=lsn)
    assert lsn_text(now.boundary.lsn) == lsn
    return {name: sorted(map(repr, now.arrow(name).to_pylist())) for name in NAMES}


@slow
def test_a_replay_that_is_killed_and_given_again_makes_the_boundary_of_the_living_lake(
    database: Database, tmp_path: Path
) -> None:
    pipeline = bank(database, tmp_path)
    own, there = pipeline.lake_uri, (tmp_path / "replayed").as_uri()
    for name in ("lake", "replayed"):
        (tmp_path / name).mkdir()
    lake, made, replayed = Lake(own), Lake(there), open_store(there, options={})
    store = open_store(pipeline.spool_uri, prefix=f"{pipeline.name}/", options={})

    def holder() -> Holder:
        return Holder.decode(store.get("apply/lease.json"))

    def whole() -> bool:
        newest = newest_of(lake)
        return newest is not None and {table.table for table in newest.tables} >= set(NAMES)

    with pipeline.start("up") as process:
        wait_until(whole, what="a boundary with both tables", processes=(process,), timeout=600)
        transfers = Transfers(database.dsn, pause_seconds=0.2)
        with transfers.going_on():
            wait_until(lambda: transfers.count > 20, what="transfers", processes=(process,))
            wait_until(lambda: len(lake.boundaries()) > 5, what="boundaries", processes=(process,))
            before, position = holder(), lsn_text(lake.newest().lsn)
            living = _rows(lake, position)
            first = pipeline.start("replay", "--to", position, "--lake", there)
            wait_until(
                lambda: any("_delta_log" in key for key in replayed.list("")),
                what="the first table of the replay",
                processes=(process,),
                timeout=600,
            )
            first.kill()
            answer = _replayed(pipeline, "--to", position, "--lake", there)
            assert process.status is None
            after = holder()
            assert (after.instance, after.number) == (before.instance, before.number)
        assert answer["lsn"] == position
        rows = {table["table"]: table["rows"] for table in answer["tables"]}
        assert {rows["public.checking"], rows["public.savings"]} == {ACCOUNTS}
        assert _rows(made, position) == living
        now = made.as_of(lsn=position)
        total = sum(sum(now.arrow(name, columns=["balance"])["balance"].to_pylist()) for name in NAMES)
        assert total == TOTAL
        assert _replayed(pipeline, "--to", position, "--lake", there) == answer
        refused = pipeline.run("replay", "--to", position, "--lake", there, "public.savings")
        assert (refused.returncode, "holds another replay" in refused.stderr) == (2, True), refused.stderr
        refused = pipeline.run("replay", "--to", "latest", "--lake", own)
        assert (refused.returncode, "is the lake of the pipeline" in refused.stderr) == (2, True), refused.stderr
        _change(replayed, "public/savings/_delta_log/")
        never = pipeline.run("replay", "--to", position, "--lake", there)
        assert (never.returncode, "public.savings cannot be made: it is stale" in never.stderr) == (2, True), (
            never.stderr
        )


def _change(store: ObjectStore, log: str) -> None:
    """Somebody else removes a data file of the lake table."""
    commits = [key for key in store.list(log) if key.endswith(".json") and key.removeprefix(log)[:20].isdigit()]
    actions = [json.loads(line) for key in commits for line in store.get(key).splitlines()]
    path = next(action["add"]["path"] for action in actions if "add" in action)
    taken = {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}}
    lines = ({"commitInfo": {"timestamp": 1, "operation": "WRITE"}}, taken)
    store.create(f"{log}{len(commits):020d}.json", "\n".join(map(json.dumps, lines)).encode())


@slow
def test_on_s3_by_executors_a_replay_makes_what_nobody_applies(
    database: Database, tmp_path: Path, moto: Bucket
) -> None:
    spool, own = f"{moto.uri}/spool", {"uri": f"{moto.uri}/lake", "options": moto.options}
    sections: dict[str, dict[str, Any]] = {"spool": {"uri": spool, "options": moto.options}, "lake": own}
    pipeline = bank(database, tmp_path, **sections, apply={"way": "distributed"})
    changes = "UPDATE checking SET balance = balance + id WHERE id % 3 = 0", "DELETE FROM savings WHERE id < 10"
    for statements in ((), changes):
        database.execute(*statements)
        must(pipeline, "run", "--until-caught-up", timeout=600)
    store = open_store(spool, prefix=f"{pipeline.name}/", options=moto.options)
    before, there = sorted(store.list("")), f"{moto.uri}/replayed"
    answer = _replayed(pipeline, "--to", "latest", "--lake", there)
    assert sorted(store.list("")) == before, "the spool is as it was"
    now = Lake(there, storage_options=moto.options).as_of(lsn=answer["lsn"])
    for name in NAMES:
        found = now.arrow(name, columns=["id", "balance"]).to_pylist()
        wanted = database.all(f"SELECT id, balance FROM {name} ORDER BY id")
        assert sorted((row["id"], row["balance"]) for row in found) == wanted
