"""kill -9 behind each kind of message that begins or ends a transaction, before what it brought is
durable and after.

The connection goes silent right behind the message, so that the process has it and nothing later.
Nothing is lost, nothing comes twice, and nothing of a transaction that has not committed is ever
visible. (PostgreSQL: Logical Replication Message Formats)
"""

import itertools
import os
import signal
from collections.abc import Callable

import psycopg
import pytest

from tests.chaos import writer
from tests.chaos.world import Gate, World
from tests.support.extent import slow
from tests.support.pgproxy import Cut, Message
from tests.support.pipeline import wait_until
from tools.local.sluice import SluiceProcess

TAGS = "BCSEAcbPpKr"
_NUMBERS = itertools.count()


def history(world: World) -> None:
    """One transaction of each kind: ordinary, streamed with a part rolled back, streamed and rolled
    back whole, prepared and ended in both ways.
    """
    number = next(_NUMBERS)
    streamed = (
        f"INSERT INTO {writer.LARGE} SELECT i, {number}, {writer.BODY} FROM "
        f"generate_series({1000 * number}, {1000 * number + 99}) i"
    )
    with psycopg.connect(world.database.dsn, autocommit=True) as connection:
        connection.execute(f"INSERT INTO {writer.LARGE} VALUES ({1000 * number + 990}, 0, 'ordinary')".encode())
        with connection.transaction():
            connection.execute(streamed.encode())
            with connection.transaction(force_rollback=True):
                connection.execute(
                    f"UPDATE {writer.LARGE} SET n = -1, body = body || 'never' WHERE n = {number}".encode()
                )
        with connection.transaction(force_rollback=True):
            connection.execute(f"UPDATE {writer.LARGE} SET n = -2, body = body || 'never' WHERE n = {number}".encode())
        for gid, statement, end in (
            ("one", f"INSERT INTO {writer.LARGE} VALUES ({1000 * number + 991}, -3, 'prepared')", "COMMIT"),
            ("large", f"UPDATE {writer.LARGE} SET n = -4, body = body || 'x' WHERE id / 1000 = {number}", "COMMIT"),
            ("gone", f"INSERT INTO {writer.LARGE} VALUES ({1000 * number + 992}, -5, 'never')", "ROLLBACK"),
            ("", f"DELETE FROM {writer.LARGE} WHERE id / 1000 = {number - 2}", "COMMIT"),
        ):
            connection.execute("BEGIN")
            connection.execute(statement.encode())
            connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
            connection.execute(
                f"INSERT INTO {writer.LARGE} VALUES ({1000 * number + 993 + len(gid)}, 0, 'between')".encode()
            )
            connection.execute(f"{end} PREPARED '{gid}'".encode())


def tagged(tag: str) -> Callable[[Message], bool]:
    return lambda message: message.tag == tag


def left_open(world: World, streaming: psycopg.Connection, *, durable: bool) -> None:
    """Two transactions that stay open through all the kills: one is streamed meanwhile, the other
    prepared. Were they published, the witness would object.
    """
    first = 1000 * next(_NUMBERS)
    streaming.execute(
        f"INSERT INTO {writer.LARGE} SELECT i, -6, {writer.BODY} FROM generate_series({first}, {first + 99}) i".encode()
    )
    with psycopg.connect(world.database.dsn, autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute(f"INSERT INTO {writer.LARGE} VALUES ({first + 200}, -7, 'prepared')".encode())
        connection.execute(f"PREPARE TRANSACTION 'left open {durable}'".encode())


def stored(world: World, process: SluiceProcess, gate: Gate) -> None:
    """What `process` has heard is durable, and it has not come to acknowledging that; or there was
    nothing to store, and it has left.
    """
    before = world.spool.newest_seq
    gate.close()
    os.kill(process.pid, signal.SIGTERM)
    wait_until(lambda: world.spool.newest_seq > before or process.status is not None, what="the entry is stored")


@slow
@pytest.mark.parametrize(
    "durable",
    [pytest.param(False, id="at once"), pytest.param(True, id="when it is durable and not acknowledged")],
)
def test_a_kill_behind_any_message_loses_and_doubles_nothing(started: World, durable: bool) -> None:
    gate = Gate(started.pipeline.directory / "gate")
    with psycopg.connect(started.database.dsn) as streaming:
        left_open(started, streaming, durable=durable)
        for tag in TAGS:
            history(started)
            came = started.proxy.cut(Cut.SILENT, matches=tagged(tag))
            process = started.ingest(faults=gate.holding("commit.after"))
            wait_until(came.is_set, what=f"message {tag}", processes=(process,))
            if durable:
                stored(started, process, gate)
            process.kill()
            gate.open()
            started.proxy.drop()
            started.wait_for_end_of_connection()
            started.check()
        started.catch_up()
        started.assert_exactly_once()
    started.database.execute(f"COMMIT PREPARED 'left open {durable}'")
    started.catch_up()
    started.assert_exactly_once()
