"""A server in recovery, another database, an invalidated slot, a door that was closed."""

import json
import time
from pathlib import Path

from deploy.local.postgres import temporary_server
from tests.support.looks import Pipe, orders
from tests.support.sources import Database


def said(pipe: Pipe, *commands: str) -> dict[str, object]:
    seen: dict[str, object] = {}
    for command in commands:
        ended = pipe(*command.split())
        seen[command] = (ended.returncode, ended.stdout[-250:] if "json" not in command else [(p["code"], p["message"][:120]) for p in json.loads(ended.stdout).get("problems", [])], ended.stderr[-250:])
        print(command, seen[command], flush=True)
    return seen


def test_a_server_in_recovery_and_an_invalidated_slot(tmp_path: Path) -> None:
    with temporary_server() as server:
        database = Database(server, "postgres", "sluice_h", "sluice_h")
        orders(database)
        pipe = Pipe(database, tmp_path)
        assert pipe("run", "--until-caught-up").returncode == 0
        with server.superuser(database.name) as connection:
            folder = Path(connection.execute("SHOW data_directory").fetchone()[0])  # type: ignore[index]
        server.stop()
        (folder / "standby.signal").touch()
        server.start()
        print("RECOVERY")
        recovery = said(pipe, "status --json", "check", "run --until-caught-up", "slot show")
        server.stop()
        (folder / "standby.signal").unlink()
        server.start()
        print("INVALIDATED")
        database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        database.execute(*["CREATE TABLE IF NOT EXISTS fill (t text)", *["SELECT pg_switch_wal()", "INSERT INTO fill VALUES (1)"] * 6, "CHECKPOINT", "CHECKPOINT"])
        lost = said(pipe, "status --json", "check", "run", "tables", "slot show")
        assert recovery["status --json"][0] != 0  # type: ignore[index]
        assert (lost["status --json"][0], lost["check"][0], lost["run"][0]) == (7, 7, 7)  # type: ignore[index]


def test_another_database_and_a_closed_door(database: Database, tmp_path: Path) -> None:
    orders(database)
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.applied()
        with database.server.superuser() as admin:
            admin.execute(f"ALTER DATABASE {database.name} ALLOW_CONNECTIONS false".encode())
        try:
            time.sleep(20)
            print(pipe.looks())
        finally:
            with database.server.superuser() as admin:
                admin.execute(f"ALTER DATABASE {database.name} ALLOW_CONNECTIONS true".encode())
    other = Pipe(database, tmp_path, dsn=database.server.dsn(dbname="postgres"))
    print(said(other, "status --json", "check"))
