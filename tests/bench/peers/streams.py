"""PEERS1: who reads the log of P1, each from a copy of one slot."""

import tempfile
from pathlib import Path

from tests.bench.contest import Contestant, Outcome, console, outcome_of, said, show, take_turns
from tests.bench.peers import environment
from tests.bench.replication import SLOT, W1_CHANGES, Arena, w1

_HERE = Path(__file__).parent
ROWS = {"c": W1_CHANGES["i"], "u": W1_CHANGES["u"], "d": W1_CHANGES["d"]}
HEAP = "2g"
WHAT = {
    "pg_recvlogical": "writes what the server sends to /dev/null",
    "psycopg2": "hands each message to Python, which counts it by its first letter",
    "Debezium": "makes typed events with their schemas in memory, counts and drops them",
    "our reader": "empties the buffer of the connection and keeps nothing",
    "sluice": "decodes each value into typed Parquet, durable with its manifest",
}


def peers1(rounds: int) -> dict[str, float | None]:
    """PEERS1: the log of P1, read by pg_recvlogical, psycopg2, Debezium's engine, a reader that keeps nothing, and
    ingest.
    """
    environment.python()
    with w1() as (arena, verify):
        contestants = [
            Contestant("pg_recvlogical", arena.reference),
            Contestant("psycopg2", lambda number: _psycopg2(arena, number)),
            Contestant("Debezium", lambda number: _debezium(arena, number)),
            Contestant("our reader", arena.discarded),
            Contestant("sluice", lambda number: arena.ours(number, verify)),
        ]
        take_turns("PEERS1", contestants, rounds=rounds)
        show("PEERS1", contestants)
    for name, what in WHAT.items():
        console.print(f"{name} {what}")
    ours = contestants[-1]
    return {
        f"{one.name} {what}": value
        for one in contestants
        for what, value in (
            ("s", one.median_s),
            ("min s", one.min_s),
            ("of ours", one.median_s / ours.median_s),
            ("cpu s", one.median("cpu_s")),
            ("RSS MB", one.median("peak_rss_mb")),
        )
    }


def _psycopg2(arena: Arena, number: int) -> Outcome:
    with arena.slot(f"psycopg2_{number}") as slot:
        wanted = str(sum(ROWS.values()))
        program = str(_HERE / "psycopg2_loop.py")
        return _counted(environment.python(), program, arena.server.dsn(), slot, SLOT, wanted)


def _debezium(arena: Arena, number: int) -> Outcome:
    classes = environment.debezium()
    with arena.slot(f"debezium_{number}") as slot, tempfile.TemporaryDirectory() as folder:
        properties = Path(folder) / "engine.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in _properties(arena, slot).items()))
        program = str(_HERE / "CountEvents.java")
        return _counted("java", f"-Xmx{HEAP}", "-cp", classes, program, str(properties), str(sum(ROWS.values())))


def _properties(arena: Arena, slot: str) -> dict[str, str]:
    return {
        "name": slot,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "database.hostname": "127.0.0.1",
        "database.port": str(arena.server.port),
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": "postgres",
        "topic.prefix": "bench",
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": SLOT,
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        "max.batch.size": "8192",
        "max.queue.size": "65536",
    }


def _counted(*command: str) -> Outcome:
    result = said(*command)
    found = {op: result["counted"].get(op, 0) for op in ROWS}
    if found != ROWS:
        raise RuntimeError(f"{command[0]} saw {found}, not {ROWS}")
    return outcome_of(result)
