"""A background part of ingest dies of an error that is no ServiceError while the stream is being reconnected."""

import time
from pathlib import Path

from deploy.local.postgres import temporary_server
from tests.support.looks import Pipe, orders
from tests.support.sources import Database


def test_a_copier_that_died_while_the_stream_was_away_is_started_again_or_named(tmp_path: Path) -> None:
    with temporary_server() as server:
        database = Database(server, "postgres", "sluice_h", "sluice_h")
        orders(database)
        with Pipe(database, tmp_path).start(SLUICE_FAULTS="copy.taken=delay:12+raise:RuntimeError@1").streaming() as pipe:
            pipe.wait(lambda: any(e["event"] == "copy started" for e in pipe.events()))
            time.sleep(4)
            server.stop("immediate")
            pipe.wait(lambda: any(e["event"] == "lost contact, trying again" for e in pipe.events()))
            time.sleep(16)
            server.start()
            pipe.wait(lambda: [e["event"] for e in pipe.events()].count("streaming") == 2)
            pipe.applied(state="copying")
            time.sleep(100)
            pipe.applied(2, state="copying")
            time.sleep(16)
            began = [e for e in pipe.events() if e["event"] == "copy started"]
            print("copies begun", len(began), "events", [e["event"] for e in pipe.events()][-12:])
            seen = pipe.looks()
            print(seen, [l for l in pipe.get("/metrics")[1].splitlines() if l.startswith("sluice_heartbeat")], time.time())
            assert len(began) > 1 or seen["/status"][1] != "healthy"
