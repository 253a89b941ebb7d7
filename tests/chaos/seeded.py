"""Chaos by seed: short stories that mix the whole workload with faults of every kind, each judged
by the oracle, each repeated by its number.

    python -m tests.chaos --seeds 20                 twenty new seeds
    python -m tests.chaos --seeds 200 --minutes 60   as many as there is time for
    SEED=123 python -m tests.chaos                   that one again

A story is one pipeline in a database of its own: a load that never stops (small, large, streamed,
prepared and rolled-back transactions, changed keys, values that are not sent, columns added and
dropped), real processes that are started with a fault armed, struck, and started again, and in the
end a healthy run that must catch up. A seed decides what happens and in which order; the moment at
which it happens is the machine's, so a seed repeats the story and not the microsecond.

Legal are two ends: everything is equal, or what is not says so by name (a table that is stale or
quarantined, an exit code of docs/exit-codes.md that the faults of the story explain). A transaction
that is lost, doubled or torn, a table that is `live` and unequal, an acknowledgement of what is not
durable, and a process that hangs are failures.
"""

import contextlib
import random
import signal
import subprocess
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos import storefaults, writer
from tests.chaos.choices import CATALOG, ERRORS, POINTS, TAGS
from tests.chaos.load import Load
from tests.chaos.outcome import Outcome
from tests.chaos.storefaults import Place
from tests.chaos.witness import Witness
from tests.support import pgproxy
from tests.support.background import Hung
from tests.support.compare import assert_equal
from tests.support.oracle import Change, Spool
from tests.support.pgproxy import Cut, Direction, Message, PgProxy
from tests.support.pipeline import AckOracle
from tests.support.sources import Database, fresh_database
from tests.support.workload import Workload
from tools.local.jvm import QUICK
from tools.local.postgres import PostgresServer
from tools.local.sluice import Pipeline, SluiceProcess

CATCH_UP_SECONDS = 120.0
"""For a healthy run, on a machine that does other things as well."""
CRASHED = 137
LOST_EXITS = (7,)
"""The slot was lost or diverged: the only stop that a healthy restart does not fix."""


class Story:
    """One seed from its first transaction to its verdict."""

    def __init__(
        self, seed: int, server: PostgresServer, folder: Path, *, applier: bool = False, place: Place | None = None
    ) -> None:
        self.seed = seed
        self.outcome = Outcome(seed, applier=applier)
        self._choice = random.Random(seed)
        self._server = server
        self._folder = folder
        self._place = place or storefaults.local(folder / "spool")
        self._two_phase = self._choice.random() < 0.6
        self._struck: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._lost_slot = False

    def run(self) -> Outcome:
        """Never raises: what goes wrong is in the outcome."""
        began = time.monotonic()
        outcome = self.outcome
        outcome.place, outcome.major = self._place.name, self._major()
        try:
            with self._world() as (database, proxy, pipeline, workload):
                self._tell(database, proxy, pipeline, workload)
        except Hung as hung:
            outcome.hung, outcome.error = 1, str(hung)[-4000:]
        except AssertionError as failed:
            outcome.error = str(failed)[-4000:]
        except Exception:  # noqa: BLE001 - the harness's own problem is a failed story, not the end of all others
            outcome.error = traceback.format_exc()[-4000:]
        outcome.faults, outcome.exits = dict(self._struck), dict(self._ended)
        outcome.seconds = round(time.monotonic() - began, 1)
        return outcome

    # the world

    @contextlib.contextmanager
    def _world(self) -> Iterator[tuple[Database, PgProxy, Pipeline, Workload]]:
        with fresh_database(self._server) as database, contextlib.ExitStack() as stack:
            proxy = stack.enter_context(PgProxy(self._server.port, on_status=AckOracle(self._place.reader("t"))))
            database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'", *writer.CREATE)
            workload = stack.enter_context(
                Workload(database.dsn, seed=self.seed, truncates=self._choice.random() < 0.5)
            )
            workload.create(rows=5)
            tables = (
                "ALL TABLES"
                if self._choice.random() < 0.3
                else "TABLES IN SCHEMA public"
                if self._major() >= 15
                else "ALL TABLES"
            )
            database.execute(f"CREATE PUBLICATION {database.publication} FOR {tables}")
            yield database, proxy, self._pipeline(database, proxy), workload

    def _pipeline(self, database: Database, proxy: PgProxy) -> Pipeline:
        choice = self._choice
        settings: dict[str, dict[str, Any]] = {
            "source": {
                "slot": database.slot,
                "publication": database.publication,
                "two_phase": self._two_phase,
                "streaming": choice.choice(["auto", "auto", "on", "off"]),
            },
            "spool": {
                "max_delay": choice.choice(["50ms", "200ms", "1s"]),
                "transaction_memory": "1MiB",
                "options": self._place.options,
            },
            "apply": {
                "poll": "200ms",
                "driver_memory": "1GiB",
                "conf": {"spark.driver.extraJavaOptions": f"-XX:+UseSerialGC {QUICK}"},
            },
            "telemetry": {"listen": "127.0.0.1:0", "apply_listen": "127.0.0.1:0", "log_format": "json"},
        }
        return Pipeline(
            self._folder, name="t", dsn=proxy.dsn(dbname=database.name), spool_uri=self._place.uri, settings=settings
        )

    def _major(self) -> int:
        with self._server.superuser() as connection:
            return connection.info.server_version // 10000

    # the story

    def _tell(self, database: Database, proxy: PgProxy, pipeline: Pipeline, workload: Workload) -> None:
        witness = Witness(database)
        with Load(workload, database, self._choice, two_phase=self._two_phase):
            for _ in range(self._choice.randint(2, 4)):
                self._act(database, proxy, pipeline)
                proxy.check()
        database.end_prepared()
        self._catch_up(proxy, pipeline)
        if self._lost_slot:
            self.outcome.verdict = "stopped"
            self._judge_log(proxy)
            return
        self._judge(database, proxy, witness)
        if self.outcome.applier:
            self._apply(database, pipeline)

    def _act(self, database: Database, proxy: PgProxy, pipeline: Pipeline) -> None:
        """One life of the process: started, with a fault armed or struck by one, and ended in some
        way.
        """
        choice = self._choice
        faults = self._armed() if choice.random() < 0.6 else ""
        process = pipeline.start("run", environment={"SLUICE_FAULTS": faults})
        try:
            strikes = (
                []
                if faults and choice.random() < 0.5
                else [choice.choice(self._strikes()) for _ in range(choice.randint(1, 2))]
            )
            self._streams(process, proxy)
            self._live(process, choice.uniform(0.0, 1.2))
            for strike in strikes:
                if process.status is None:
                    strike(database, proxy)
                    self._live(process, choice.uniform(0.2, 1.0))
            self._part(process)
        finally:
            if process.status is None:
                process.kill()
            proxy.forget()
            for direction in Direction:
                proxy.release(direction)
            proxy.drop()
            self._place.heal()
            self._revive()

    def _armed(self) -> str:
        choice = self._choice
        point = choice.choice(POINTS)
        action = choice.choice(
            [
                "crash",
                f"raise:{choice.choice(ERRORS)}",
                f"delay:{choice.choice([0.05, 0.5])}",
                f"delay:0.3+raise:{choice.choice(ERRORS)}",
            ]
        )
        self._struck[f"stage armed to {action.partition(':')[0] if '+' not in action else 'delay and raise'}"] += 1
        return f"{point}={action}@{choice.choice([1, 1, 2, 3, 5, 8])}"

    def _strikes(self) -> list[Callable[[Database, PgProxy], None]]:
        common: list[Callable[[Database, PgProxy], None]] = [
            self._cut,
            self._cut,
            self._change,
            self._drop,
            self._stall,
            self._terminate,
            self._terminate,
            self._touch_store,
            self._touch_catalog,
        ]
        return [*common, *common, self._restart, self._lose_slot] if self.seed % 5 == 0 else common

    def _streams(self, process: SluiceProcess, proxy: PgProxy) -> None:
        """Until it acknowledges to the server, but in one life of four for less than a start takes.
        The story itself may keep it from that.
        """
        known = len(proxy.statuses)
        patience = self._choice.choice([0.8, 15.0, 15.0, 15.0])
        deadline = time.monotonic() + patience
        while process.status is None and len(proxy.statuses) == known and time.monotonic() < deadline:
            self._live(process, 0.02)

    def _live(self, process: SluiceProcess, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)

    def _part(self, process: SluiceProcess) -> None:
        if process.status is not None:
            self._note_exit(process, "by itself")
        elif self._choice.random() < 0.5:
            process.kill()
            self._struck["kill -9"] += 1
        else:
            self._struck["SIGTERM"] += 1
            self._terminate_gently(process)

    def _terminate_gently(self, process: SluiceProcess) -> None:
        """A stop may wait for what holds it up, which is why everything that does is released a
        moment later; then it must end.
        """
        process._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
        self._place.heal()
        self._revive()
        try:
            process.wait(CATCH_UP_SECONDS)
        except subprocess.TimeoutExpired:
            raise Hung(f"it did not end after SIGTERM:\n{process.log_tail(30)}") from None
        self._note_exit(process, "SIGTERM")

    def _note_exit(self, process: SluiceProcess, how: str) -> None:
        status = process.status
        self._ended[f"{status} {how}"] += 1
        # A signal that comes before the interpreter has taken charge of it ends the process as it
        # would any other.
        documented = (0, 1, 2, 5, 6, 7, 8, 75, CRASHED, -signal.SIGTERM, 128 + signal.SIGTERM)
        assert status in documented, f"ended with {status}, which no page documents:\n{process.log_tail(30)}"

    # what strikes

    def _cut(self, database: Database, proxy: PgProxy) -> None:
        choice = self._choice
        where, tag = choice.choice(list(Cut)), choice.choice(TAGS)
        direction = choice.choice([Direction.TO_CLIENT, Direction.TO_CLIENT, Direction.TO_SERVER])
        matches: Callable[[Message], bool] = (
            (lambda one: one.tag == tag) if direction is Direction.TO_CLIENT else (lambda one: one.tag == "r")
        )
        fired = proxy.cut(where, count=choice.randint(1, 3), direction=direction, matches=matches)
        if fired.wait(1.5):
            self._struck[f"connection cut {where.value}"] += 1
            if where is Cut.SILENT:
                threading.Event().wait(choice.uniform(0.2, 1.5))
                proxy.drop()

    def _change(self, database: Database, proxy: PgProxy) -> None:
        how = self._choice.choice([pgproxy.corrupted, pgproxy.lengthened, pgproxy.shortened])
        # Of a message that carries a value only the length is changed: a value that is another one
        # is beyond what any reader can notice.
        tags = "BCSEcRT" if how is pgproxy.corrupted else TAGS.replace("k", "")
        tag = self._choice.choice(tags)
        if how is pgproxy.corrupted:
            how = pgproxy.head_corrupted
        if proxy.change(how, matches=lambda one: one.tag == tag).wait(1.5):
            self._struck[f"message {'corrupted' if how is pgproxy.head_corrupted else how.__name__}"] += 1

    def _drop(self, database: Database, proxy: PgProxy) -> None:
        self._struck["all connections dropped"] += 1
        proxy.drop()

    def _stall(self, database: Database, proxy: PgProxy) -> None:
        direction = self._choice.choice(list(Direction))
        self._struck["connection stalled"] += 1
        proxy.hold(direction)
        threading.Event().wait(self._choice.uniform(0.2, 1.5))
        proxy.release(direction)

    def _terminate(self, database: Database, proxy: PgProxy) -> None:
        with database.connect() as connection:
            ours = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name ILIKE "
                "'sluice%%' AND pid <> pg_backend_pid() ORDER BY backend_start",
                (database.name,),
            ).fetchall()
            if ours:
                self._struck["session terminated"] += 1
                connection.execute("SELECT pg_terminate_backend(%s)", self._choice.choice(ours))

    def _restart(self, database: Database, proxy: PgProxy) -> None:
        mode = self._choice.choice(["fast", "immediate"])
        self._struck[f"server restarted ({mode})"] += 1
        self._server.restart("fast" if mode == "fast" else "immediate")

    def _lose_slot(self, database: Database, proxy: PgProxy) -> None:
        """The slot goes, or goes ahead of us: exit code 7, and nothing else fixes it than a new
        beginning.
        """
        how = self._choice.choice(["dropped", "advanced"])
        with database.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s",
                (database.slot,),
            )
            statement = (
                "SELECT pg_drop_replication_slot(%s)"
                if how == "dropped"
                else "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())"
            )
            with contextlib.suppress(psycopg.Error):
                connection.execute(statement, (database.slot,))
                self._lost_slot = True
                self._struck[f"slot {how}"] += 1

    def _touch_store(self, database: Database, proxy: PgProxy) -> None:
        self._struck[self._place.hurt(self._choice)] += 1

    def _touch_catalog(self, database: Database, proxy: PgProxy) -> None:
        choice = self._choice
        what, statements = choice.choice(CATALOG)
        with contextlib.suppress(psycopg.Error), database.connect() as connection:
            connection.execute("SET lock_timeout = '2s'")
            for statement in statements:
                connection.execute(
                    statement.format(publication=database.publication, number=choice.randrange(10**6)).encode()
                )
            self._struck[what] += 1

    # the end

    def _revive(self) -> None:
        if self._server.pid is None:
            self._server.start()

    def _catch_up(self, proxy: PgProxy, pipeline: Pipeline) -> None:
        """A healthy run. Once more when the first ends with what a retry fixes: the server may
        still hold the slot for the one before.
        """
        status = -1
        for _ in range(3):
            try:
                done = pipeline.run("run", "--until-caught-up", timeout=CATCH_UP_SECONDS)
            except subprocess.TimeoutExpired as expired:
                said = (
                    expired.stderr.decode(errors="replace")
                    if isinstance(expired.stderr, bytes)
                    else str(expired.stderr)
                )
                raise Hung(f"a healthy run did not catch up within {CATCH_UP_SECONDS:.0f} s:\n{said[-3000:]}") from None
            status = done.returncode
            self._ended[f"{status} caught up"] += 1
            if status == 0:
                self._lost_slot = False
                return
            if status in LOST_EXITS and self._lost_slot:
                return
        raise AssertionError(f"a healthy run ended with {status}:\n{done.stderr[-3000:]}")

    def _judge_log(self, proxy: PgProxy) -> Spool:
        proxy.check()
        self.outcome.acknowledgements = len(proxy.statuses)
        spool = Spool(self._place.fetched("t"))
        spool.read()
        return spool

    def _judge(self, database: Database, proxy: PgProxy, witness: Witness) -> None:
        outcome = self.outcome
        spool = self._judge_log(proxy)
        seen = {end: rows for end, rows in witness.transactions().items() if end > spool.start_lsn}
        published = spool.transactions
        with database.connect() as connection:
            verdicts = spool.verdicts(connection, database.publication)
        whole = {verdict.table.partition(".")[2] for verdict in verdicts if verdict.state == "live"} - spool.marked
        torn = [end for end in seen if end in published and self._torn(end, seen[end], spool, whole)]
        outcome.transactions, outcome.rows = len(seen), sum(verdict.rows for verdict in verdicts)
        outcome.lost = sum(1 for end in seen if end not in published)
        outcome.doubled = sum(1 for end in published if end not in seen)
        outcome.torn = len(torn)
        outcome.unequal_live = [
            f"{verdict.table}: {'; '.join(verdict.differences)}" for verdict in verdicts if verdict.is_silent_difference
        ]
        outcome.marked = {
            verdict.table: f"{verdict.state}: {verdict.reason}" for verdict in verdicts if verdict.state != "live"
        }
        unfinished = [verdict.table for verdict in verdicts if verdict.state in ("snapshot", "unknown")]
        wrong = {
            "no snapshot though caught up": unfinished,
            "lost": outcome.lost,
            "doubled or made up": outcome.doubled,
            "torn": [f"{end:X}: {sorted(self._torn(end, seen[end], spool, whole))}" for end in torn[:3]],
            "live and unequal": outcome.unequal_live,
        }
        found = {what: count for what, count in wrong.items() if count}
        assert not found, f"{found}"
        outcome.verdict = "marked" if outcome.marked else "equal"

    def _torn(self, end: int, rows: Counter[Change], spool: Spool, whole: set[str]) -> set[str]:
        """Tables of `whole` that have other rows in this transaction.

        What is in a table's snapshot need not be in the log: it may have come in an older shape.
        """
        snapshots = {table.name: table.snapshot_lsns.get(table.generation, 0) for table in spool.tables.values()}
        return {
            one[0]
            for one in rows
            if one[0] in whole and end > snapshots.get(one[0], 0) and spool.transactions[end][one] != rows[one]
        }

    def _apply(self, database: Database, pipeline: Pipeline) -> None:
        """The lake, by an applier that is killed once on its way, equals the source in every live
        table.
        """
        outcome = self.outcome
        verdict, outcome.verdict = outcome.verdict, "failed"
        live = [name for name in database.published() if f"public.{name}" not in outcome.marked]
        point = self._choice.choice(
            ["apply.commit.before", "apply.commit.after", "apply.log.before", "apply.log.after"]
        )
        pipeline.run(
            "apply", "--once", environment={"SLUICE_FAULTS": f"{point}=crash@{self._choice.randint(1, 4)}"}, timeout=600
        )
        self._struck["applier crashed"] += 1
        done = pipeline.run("apply", "--once", timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        assert_equal(database, live, lake_uri=pipeline.lake_uri)
        outcome.verdict = verdict
