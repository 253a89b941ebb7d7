"""docs/how-to/query-the-lake.md does what it says: each of its programs and commands runs as it stands."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sluice_lake import Lake
from tests.e2e.readers import FAST, newest_of
from tests.support.extent import slow
from tests.support.pipeline import must, new_pipeline, wait_until
from tests.support.sources import Database
from tools.local.ports import free_port

pytestmark = pytest.mark.timeout(900)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "query-the-lake.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@slow
def test_every_program_and_command_of_the_page_runs_as_it_stands(database: Database, tmp_path: Path) -> None:
    port = free_port()
    database.execute(
        "CREATE TABLE customers (customer_id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (order_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id int, status text, "
        "total numeric(10,2))",
        "INSERT INTO customers VALUES (1, 'Ada'), (2, 'Grace')",
        "INSERT INTO orders (customer_id, status, total) VALUES (1, 'paid', 10), (2, 'open', 20)",
    )
    spool = {**FAST["spool"], "progress_interval": "1s"}
    more: dict[str, Any] = {**FAST, "spool": spool, "telemetry": {"apply_listen": f"127.0.0.1:{port}"}}
    pipeline = new_pipeline(database, tmp_path, name="shop", **more)
    own = Path(sys.executable).parent
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")},
        "PATH": f"{own}{os.pathsep}{os.environ['PATH']}",
        "SHOP_DSN": database.dsn,
        "APPLIER": f"127.0.0.1:{port}",
    }
    (tmp_path / "lake").mkdir()
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) > 6
    with pipeline.start("up") as process:
        lake = Lake(str(tmp_path / "lake"))

        def both() -> bool:
            newest = newest_of(lake)
            return newest is not None and {table.table for table in newest.tables} >= {"orders", "customers"}

        wait_until(both, what="a boundary", processes=(process,))
        for name in ("third", "fourth", "fifth"):  # so that there are several
            database.execute(f"INSERT INTO customers SELECT max(customer_id) + 1, '{name}' FROM customers")
            must(pipeline, "wait", "--now", "--timeout", "400s")
        first = lake.boundaries()[0].time

        def half_a_minute_later() -> bool:
            return datetime.now(UTC) - first > timedelta(seconds=35)

        wait_until(half_a_minute_later, what="the time that the page asks for", processes=(process,))
        # A transaction behind that time shows that the lake has come to it.
        database.execute("INSERT INTO customers SELECT max(customer_id) + 1, 'sixth' FROM customers")
        must(pipeline, "wait", "--now", "--timeout", "400s")
        for language, text in blocks:
            command = ["sh", "-ec", text] if language == "sh" else [sys.executable, "-c", text]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    assert "delta_scan" in (tmp_path / "views.sql").read_text()
