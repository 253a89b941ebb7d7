"""3,000 tables: how long do the surfaces take, and does the event loop stay free?"""

import json
import time
from pathlib import Path

from service.manifest.follow import load_state
from tests.support.looks import Pipe
from tests.support.sources import Database


def test_three_thousand_tables(database: Database, tmp_path: Path) -> None:
    with database.connect() as connection, connection.transaction():
        for n in range(3000):
            connection.execute(f"CREATE TABLE t{n} (id int PRIMARY KEY)".encode())
    with Pipe(database, tmp_path).start() as pipe:
        pipe.wait(lambda: any(e["event"] == "streaming" for e in pipe.events()), 120)
        time.sleep(60)
        pipe.applied(state="stale", reason="r")
        for path in ("/status", "/readyz", "/metrics", "/livez"):
            began = time.monotonic()
            code, text = pipe.get(path)
            print(path, code, len(text), round(time.monotonic() - began, 2), flush=True)
        for command in ("status", "tables", "status --json"):
            began = time.monotonic()
            ended = pipe(*command.split())
            print(command, ended.returncode, len(ended.stdout), round(time.monotonic() - began, 2), flush=True)
        states = [t.state for t in load_state(pipe.store).tables.values()]
        lag = [l for l in pipe.get("/metrics")[1].splitlines() if l.startswith("sluice_event_loop_lag_seconds")]
        print({s: states.count(s) for s in set(states)}, lag[-14:])
