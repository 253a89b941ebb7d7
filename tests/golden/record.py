"""Records what a real server sends: `python -m tests.golden.record` writes tests/golden/pg<major>/*.bin, and *.json as the reference decoder reads it.

A .bin file is a sequence of CopyData payloads, each behind its length as four big-endian bytes. The .json beside it is for people and for the test
that compares service.protocol with it; it is never written by service.protocol.
(PostgreSQL: Streaming Replication Protocol.)
"""

import json
import select
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg
from psycopg import pq

from deploy.local.postgres import PostgresServer, temporary_server
from tests.support.reference_decoder import readable

FOLDER = Path(__file__).parent
DEADLINE_SECONDS = 30.0

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN price AS numeric(10,2);
CREATE TABLE "shop items" (id bigint PRIMARY KEY, name text, mood mood, price price, big text);
ALTER TABLE "shop items" ALTER big SET STORAGE EXTERNAL;
CREATE TABLE audit (a int, b text);
ALTER TABLE audit REPLICA IDENTITY FULL;
CREATE TABLE nothing ();
CREATE PUBLICATION golden FOR ALL TABLES;
SELECT pg_replication_origin_create('upstream');
"""
ROWS = """
INSERT INTO "shop items" VALUES (1, 'tëa', 'ok', 1.50, repeat('x', 2500)), (2, '', NULL, 'NaN', NULL);
UPDATE "shop items" SET name = NULL WHERE id = 1;
UPDATE "shop items" SET id = 3 WHERE id = 1;
DELETE FROM "shop items" WHERE id = 2;
INSERT INTO audit VALUES (1, 'one');
UPDATE audit SET b = NULL;
DELETE FROM audit;
INSERT INTO nothing DEFAULT VALUES;
SELECT pg_logical_emit_message(true, 'inside', '\\x00ff0a'::bytea);
"""
TRUNCATE = 'TRUNCATE "shop items", audit RESTART IDENTITY CASCADE;'
ORIGIN = "SELECT pg_replication_origin_session_setup('upstream');"
ORIGIN_OF_TRANSACTION = "SELECT pg_replication_origin_xact_setup('0/ABCD', '2026-01-02 03:04:05.678901+00');"


class Recorder:
    """One slot and the connection that streams from it. `pump` collects frames until one satisfies its caller."""

    def __init__(self, server: PostgresServer, name: str, options: str, *, two_phase: bool = False) -> None:
        self.frames: list[bytes] = []
        with server.superuser() as admin:
            admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)", (name, two_phase))
        self._connection = pq.PGconn.connect(f"{server.dsn()}?replication=database".encode())
        command = f"START_REPLICATION SLOT {name} LOGICAL 0/0 (publication_names 'golden', messages 'true', {options})"
        self._connection.send_query(command.encode())
        result = self._connection.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise RuntimeError(self._connection.error_message.decode())

    def pump(self, enough: Callable[[bytes], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            length, payload = self._connection.get_copy_data(1)
            if length > 0:
                frame = bytes(payload)
                # Only the first keepalive is worth keeping: there is one every few messages, all alike.
                if frame[:1] == b"w" or not any(kept[:1] == b"k" for kept in self.frames):
                    self.frames.append(frame)
                if enough(frame):
                    return
            elif length == 0:
                select.select([self._connection.socket], [], [], 1)
                self._connection.consume_input()
            else:
                raise RuntimeError(self._connection.error_message.decode())
        raise TimeoutError("the server did not send what was waited for")

    def pump_to(self, tag: bytes) -> None:
        self.pump(lambda frame: frame[:1] == b"w" and frame[25:26] == tag)

    def close(self) -> None:
        self._connection.finish()


def ordinary(server: PostgresServer, name: str, options: str) -> list[bytes]:
    """B C O R Y I U D T M k."""
    recorder = Recorder(server, name, options)
    with psycopg.connect(server.dsn()) as writer:
        for statements in (ROWS, TRUNCATE, ORIGIN, ORIGIN_OF_TRANSACTION + "INSERT INTO audit VALUES (2, 'from elsewhere');"):
            writer.execute(statements.encode())
            writer.commit()
    with psycopg.connect(server.dsn()) as writer:
        writer.execute("SELECT pg_logical_emit_message(false, 'outside', 'text')")
        # With a savepoint rolled back.
        writer.execute("INSERT INTO audit VALUES (3, 'kept'); SAVEPOINT s; INSERT INTO audit VALUES (4, 'gone'); ROLLBACK TO s;")
        writer.execute("TRUNCATE audit")
        writer.commit()
    for _ in range(4):
        recorder.pump_to(b"C")
    recorder.close()
    return recorder.frames


def streamed(server: PostgresServer, name: str, options: str) -> list[bytes]:
    """S E c A, and R Y T M O inside a stream."""
    recorder = Recorder(server, name, options)
    with psycopg.connect(server.dsn()) as writer:
        writer.execute(ORIGIN.encode())
        writer.commit()
        writer.execute(ORIGIN_OF_TRANSACTION.encode())
        writer.execute(ROWS.encode())
        recorder.pump_to(b"M")
        writer.execute("SAVEPOINT s; INSERT INTO audit VALUES (5, 'gone');")
        recorder.pump(lambda frame: b"gone" in frame)
        writer.execute("ROLLBACK TO s; INSERT INTO audit VALUES (6, 'kept');")
        recorder.pump_to(b"A")
        writer.execute(TRUNCATE.encode())
        writer.commit()
        recorder.pump_to(b"c")
    with psycopg.connect(server.dsn()) as writer:
        writer.execute("INSERT INTO audit VALUES (7, 'gone as a whole')")
        recorder.pump_to(b"I")
        writer.rollback()
        recorder.pump_to(b"A")
    recorder.close()
    return recorder.frames


def prepared(server: PostgresServer, name: str, options: str, *, ending: bytes) -> list[bytes]:
    """b P (or a streamed body and p), then K and r."""
    recorder = Recorder(server, name, options, two_phase=True)
    with server.superuser() as writer:
        for gid, finish in (("gid/kept", "COMMIT"), ("", "COMMIT"), ("gid dropped", "ROLLBACK")):
            for statement in ("BEGIN", f"INSERT INTO audit VALUES (8, 'prepared as {gid}')", f"PREPARE TRANSACTION '{gid}'"):
                writer.execute(statement.encode())
            recorder.pump_to(ending)
            writer.execute(f"{finish} PREPARED '{gid}'".encode())
            recorder.pump_to(b"K" if finish == "COMMIT" else b"r")
        writer.execute("TRUNCATE audit")
    recorder.close()
    return recorder.frames


def copied(server: PostgresServer, source: str) -> list[bytes]:
    """The initial copy's format: a header, rows of text, a trailer."""
    connection = pq.PGconn.connect(server.dsn().encode())
    connection.exec_(f"COPY (SELECT textin(int8out(n)), textin(textout(t)) FROM {source} AS v(n, t)) TO STDOUT (FORMAT binary)".encode())
    chunks = []
    while (chunk := connection.get_copy_data(0))[0] > 0:
        chunks.append(bytes(chunk[1]))
    connection.finish()
    return chunks


def write(folder: Path, name: str, frames: Sequence[bytes], *, described: bool = True) -> None:
    (folder / f"{name}.bin").write_bytes(b"".join(struct.pack(">I", len(frame)) + frame for frame in frames))
    if described:
        lines = ",\n".join(json.dumps(value, ensure_ascii=False) for value in readable(frames))
        (folder / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def main(major: int | None) -> None:
    with temporary_server(major=major, settings={"debug_logical_replication_streaming": "immediate", "wal_writer_delay": "10ms"}) as server:
        with server.superuser() as admin:
            version = admin.info.server_version // 10000
            admin.execute(SCHEMA.encode())
        folder = FOLDER / f"pg{version}"
        folder.mkdir(exist_ok=True)
        write(folder, "protocol1", ordinary(server, "one", "proto_version '1'"))
        write(folder, "protocol1_binary", ordinary(server, "one_binary", "proto_version '1', binary 'true'"))
        write(folder, "protocol2_streaming", streamed(server, "two", "proto_version '2', streaming 'on'"))
        write(folder, "protocol3_two_phase", prepared(server, "three", "proto_version '3', two_phase 'true'", ending=b"P"))
        write(folder, "protocol4_parallel", streamed(server, "four", "proto_version '4', streaming 'parallel'"))
        options = "proto_version '4', streaming 'parallel', two_phase 'true'"
        write(folder, "protocol4_two_phase", prepared(server, "four_two_phase", options, ending=b"p"))
        write(folder, "copy_rows", copied(server, "(VALUES (1::bigint, 'tëa'), (NULL, ''), (-3, NULL))"), described=False)
        write(folder, "copy_empty", copied(server, "(SELECT 1::bigint, 'x'::text WHERE false)"), described=False)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
