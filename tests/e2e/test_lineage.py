"""Real processes and a receiver of OpenLineage on the loopback: what feeds what, column by column, for each life of an
applier.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.readers import FAST
from tests.support.collector import Collector
from tests.support.extent import slow
from tests.support.openlineage import events_of
from tests.support.pipeline import complete_through, new_pipeline, wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline

pytestmark = pytest.mark.timeout(600)
CANARY, MASK, TOKEN = "canary-row-value", "canary-mask", "canary-lineage-token"
Json = dict[str, Any]


def _pipeline(database: Database, directory: Path, collector: Collector) -> Pipeline:
    database.execute(
        "CREATE TABLE customers (id int PRIMARY KEY, email text, phone text, note varchar(30), card text)",
        f"INSERT INTO customers VALUES (1, '{CANARY}', '{CANARY}', '{CANARY}', '{CANARY}')",
    )
    (directory / "key").write_text("0123456789abcdef0123456789abcdef\n")
    (directory / "key").chmod(0o600)
    telemetry = {
        "lineage": collector.url("/api/v1/lineage"),
        "lineage_headers": {"authorization": f"Bearer {TOKEN}"},
        "lineage_namespace": "prod",
        "lineage_every": "1s",
    }
    customers = {
        "columns": {"phone": {"mask": MASK}, "card": "exclude"},
        "targets": [{"kind": "mirror"}, {"kind": "changelog", "name": "customers_log"}],
    }
    more: dict[str, Any] = {**FAST, "telemetry": telemetry, "tables": {"public.customers": customers}}
    return new_pipeline(database, directory, name="shop", **more)


@slow
def test_each_life_of_an_applier_says_which_columns_feed_which(database: Database, tmp_path: Path) -> None:
    collector = Collector()
    pipeline = _pipeline(database, tmp_path, collector)

    def events() -> list[Json]:
        return events_of(collector.requests)

    def outputs(event: Json) -> dict[str, Json]:
        return {one["name"].rsplit("/", 1)[1]: one for one in event["outputs"]}

    def is_whole(event: Json) -> bool:
        """With a version of both lake tables."""
        found = outputs(event)
        return len(found) == 2 and all("version" in one["facets"] for one in found.values())

    with collector.listening():
        with pipeline.start("up") as process:
            wait_until(lambda: complete_through(pipeline) > 0, what="a boundary", processes=(process,))
            wait_until(lambda: any(map(is_whole, events())), what="a whole event", processes=(process,))
        first = events()
        with pipeline.start("up") as process:
            wait_until(lambda: len(events()) > len(first) + 1, what="another run", processes=(process,))
            process.kill()
        killed = events()[len(first) :]
    assert [event["eventType"] for event in first] == ["START", *["RUNNING"] * (len(first) - 2), "COMPLETE"]
    assert {event["eventType"] for event in killed} == {"START", "RUNNING"}
    runs = [{event["run"]["runId"] for event in life} for life in (first, killed)]
    assert [len(run) for run in runs] == [1, 1]
    assert runs[0] != runs[1]
    assert {(event["job"]["namespace"], event["job"]["name"]) for event in first + killed} == {("prod", "shop")}

    last = first[-1]
    (source,) = last["inputs"]
    port = database.server.port
    assert source["namespace"] in {f"postgres://{host}:{port}" for host in ("127.0.0.1", "localhost")}
    assert source["name"] == f"{database.name}.public.customers"
    fields = {one["name"]: one["type"] for one in source["facets"]["schema"]["fields"]}
    assert fields["note"] == "character varying(30)"
    mirror = outputs(last)["customers"]
    assert (mirror["namespace"], mirror["name"]) == ("file", str(tmp_path.resolve() / "lake" / "public" / "customers"))
    stored = [one["name"] for one in mirror["facets"]["schema"]["fields"]]
    assert stored == ["id", "email", "phone", "note", "_sluice_lsn", "_sluice_ts"]
    lineage = mirror["facets"]["columnLineage"]["fields"]
    assert lineage.keys() == {"id", "email", "phone", "note"}
    (email,), (phone,) = (lineage[name]["inputFields"] for name in ("email", "phone"))
    assert (email["name"], email["field"]) == (source["name"], "email")
    assert email["transformations"] == [{"type": "DIRECT", "subtype": "IDENTITY", "masking": False}]
    assert phone["transformations"][0] == {
        "type": "DIRECT",
        "subtype": "TRANSFORMATION",
        "description": "mask",
        "masking": True,
    }
    rules = mirror["facets"]["sluice_columnRules"]["rules"]
    assert rules == [{"column": "phone", "rule": "mask"}, {"column": "card", "rule": "exclude"}]
    position = outputs(last)["customers_log"]["facets"]["sluice_position"]
    assert (position["kind"], position["state"]) == ("changelog", "live")
    assert "/" in position["completeThroughLsn"]
    assert position["completeThroughLsn"] != "0/0"

    said = b"".join(request.body for request in collector.requests).decode()
    assert all(secret not in said for secret in (CANARY, MASK, TOKEN))
    assert TOKEN not in (tmp_path / "up.log").read_text()
