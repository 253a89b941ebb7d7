"""Records what a real server sends: `python -m tests.golden.record 14 15` writes
tests/golden/pg<major>/*.bin, and *.json as the reference decoder reads it.

A .bin file is a sequence of CopyData payloads, each behind its length as four big-endian bytes. The
.json beside it is for people and for the test that compares sluice.protocol with it; it is never
written by sluice.protocol. (PostgreSQL: Streaming Replication Protocol.)
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

from tests.support.reference_decoder import readable
from tools.local.postgres import PostgresServer, temporary_server

FOLDER = Path(__file__).parent
DEADLINE_SECONDS = 30.0
SMALLEST = {"logical_decoding_work_mem": "64kB"}
"""Before 16 nothing streams a transaction but its size: this is the least that counts."""

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN price AS numeric(10,2);
CREATE TABLE "shop items" (id bigint PRIMARY KEY, name text, mood mood, price price, big text);
ALTER TABLE "shop items" ALTER big SET STORAGE EXTERNAL;
CREATE TABLE audit (a int, b text);
ALTER TABLE audit REPLICA IDENTITY FULL;
CREATE TABLE nothing ();
CREATE TABLE unpublished (t text);
CREATE PUBLICATION golden FOR TABLE "shop items", audit, nothing;
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
GROW = "INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 100);"
"""Makes the server stream what the transaction has so far, and adds nothing to the stream."""
TRUNCATE = 'TRUNCATE "shop items", audit RESTART IDENTITY CASCADE;'
ORIGIN = "SELECT pg_replication_origin_session_setup('upstream');"
ORIGIN_OF_TRANSACTION = "SELECT pg_replication_origin_xact_setup('0/ABCD', '2026-01-02 03:04:05.678901+00');"


class Recorder:
    """One slot and the connection that streams from it. `pump` collects frames until one satisfies
    its caller.
    """

    def __init__(self, server: PostgresServer, name: str, options: str, *, two_phase: bool = False) -> None:
        self.frames: list[bytes] = []
        self._server = server
        with server.superuser() as admin:
            admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)", (name, two_phase))
        self._connection = pq.PGconn.connect(f"{server.dsn()}?replication=database".encode())
        command = f"START_REPLICATION SLOT {name} LOGICAL 0/0 (publication_names 'golden', messages 'true', {options})"
        self._connection.send_query(command.encode())
        result = self._connection.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise RuntimeError(self._connection.error_message.decode())

    def pump_open(self, enough: Callable[[bytes], bool]) -> None:
        """`pump`, for what a transaction that is still open has written: only flushed WAL is
        decoded, and nothing else flushes it soon.
        """
        with self._server.superuser() as admin:
            admin.execute("SELECT pg_switch_wal()")
        self.pump(enough)

    def pump(self, enough: Callable[[bytes], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            length, payload = self._connection.get_copy_data(1)
            if length > 0:
                frame = bytes(payload)
                # Only the first keepalive is worth keeping: there is one every few messages, all
                # alike.
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
        for statements in (
            ROWS,
            TRUNCATE,
            ORIGIN,
            ORIGIN_OF_TRANSACTION + "INSERT INTO audit VALUES (2, 'from elsewhere');",
        ):
            writer.execute(statements.encode())
            writer.commit()
    with psycopg.connect(server.dsn()) as writer:
        writer.execute("SELECT pg_logical_emit_message(false, 'outside', 'text')")
        # With a savepoint rolled back.
        writer.execute(
            "INSERT INTO audit VALUES (3, 'kept'); SAVEPOINT s; INSERT INTO audit VALUES (4, 'gone'); ROLLBACK TO s;"
        )
        writer.execute("TRUNCATE audit")
        writer.commit()
    for _ in range(4):
        recorder.pump_to(b"C")
    recorder.close()
    return recorder.frames


def streamed(server: PostgresServer, name: str, options: str, *, grow: str) -> list[bytes]:
    """S E c A, and R Y T M O inside a stream. `grow` follows what is to be streamed."""
    recorder = Recorder(server, name, options)
    with psycopg.connect(server.dsn()) as writer:
        writer.execute(ORIGIN.encode())
        writer.commit()
        writer.execute(ORIGIN_OF_TRANSACTION.encode())
        writer.execute((ROWS + grow).encode())
        recorder.pump_open(lambda frame: frame[25:26] == b"M")
        writer.execute(f"SAVEPOINT s; INSERT INTO audit VALUES (5, 'gone'); {grow}".encode())
        recorder.pump_open(lambda frame: b"gone" in frame)
        writer.execute("ROLLBACK TO s; INSERT INTO audit VALUES (6, 'kept');")
        recorder.pump_open(lambda frame: frame[25:26] == b"A")
        writer.execute(TRUNCATE.encode())
        writer.commit()
        recorder.pump_to(b"c")
    with psycopg.connect(server.dsn()) as writer:
        writer.execute(f"INSERT INTO audit VALUES (7, 'gone as a whole'); {grow}".encode())
        recorder.pump_open(lambda frame: frame[25:26] == b"I")
        writer.rollback()
        recorder.pump_open(lambda frame: frame[25:26] == b"A")
    recorder.close()
    return recorder.frames


def prepared(server: PostgresServer, name: str, options: str, *, ending: bytes, grow: str = "") -> list[bytes]:
    """b P (or a streamed body and p), then K and r."""
    recorder = Recorder(server, name, options, two_phase=True)
    with server.superuser() as writer:
        for gid, finish in (("gid/kept", "COMMIT"), ("", "COMMIT"), ("gid dropped", "ROLLBACK")):
            for statement in (
                "BEGIN",
                f"INSERT INTO audit VALUES (8, 'prepared as {gid}'); {grow}",
                f"PREPARE TRANSACTION '{gid}'",
            ):
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
    connection.exec_(
        f"COPY (SELECT textin(int8out(n)), textin(textout(t)) FROM {source} AS v(n, t)) "
        "TO STDOUT (FORMAT binary)".encode()
    )
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


def main(major: int) -> None:
    immediate = major >= 16
    streaming = {"debug_logical_replication_streaming": "immediate"} if immediate else SMALLEST
    grow = "" if immediate else GROW
    with temporary_server(
        major=major, settings={**streaming, "wal_writer_delay": "10ms", "autovacuum": "off"}
    ) as server:
        with server.superuser() as admin:
            admin.execute(SCHEMA.encode())
        folder = FOLDER / f"pg{major}"
        folder.mkdir(exist_ok=True)
        write(folder, "protocol1", ordinary(server, "one", "proto_version '1'"))
        write(folder, "protocol1_binary", ordinary(server, "one_binary", "proto_version '1', binary 'true'"))
        write(folder, "protocol2_streaming", streamed(server, "two", "proto_version '2', streaming 'on'", grow=grow))
        if major >= 15:
            options = "proto_version '3', two_phase 'true'"
            write(folder, "protocol3_two_phase", prepared(server, "three", options, ending=b"P"))
            options = "proto_version '3', streaming 'on', two_phase 'true'"
            write(
                folder,
                "protocol3_streaming_two_phase",
                prepared(server, "three_streaming", options, ending=b"p", grow=grow),
            )
        if major >= 16:
            options = "proto_version '4', streaming 'parallel'"
            write(folder, "protocol4_parallel", streamed(server, "four", options, grow=grow))
            options += ", two_phase 'true'"
            write(folder, "protocol4_two_phase", prepared(server, "four_two_phase", options, ending=b"p", grow=grow))
        write(
            folder, "copy_rows", copied(server, "(VALUES (1::bigint, 'tëa'), (NULL, ''), (-3, NULL))"), described=False
        )
        write(folder, "copy_empty", copied(server, "(SELECT 1::bigint, 'x'::text WHERE false)"), described=False)


if __name__ == "__main__":
    for asked in sys.argv[1:]:
        main(int(asked))
