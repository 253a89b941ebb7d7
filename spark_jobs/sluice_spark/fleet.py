"""`python -m sluice_spark.fleet`: one applier for many pipelines, in one JVM.

Each pipeline has a thread with a loop, a ledger, a lease and metrics of its own; they share the Spark
session and take turns at it. Standard input has one line for each change of the fleet: the options of
all pipelines by name, as JSON with secrets.

Owns: an error that concerns one pipeline ends its thread alone, which is begun again when the error may
pass, or with the next line. An error that concerns Spark, and keys that were changed, end the process
with 75: whoever started it starts it again. A pipeline is stopped before it is begun with other options.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import FrameType
from typing import Any, BinaryIO
from urllib.parse import parse_qs

import click
import structlog
from pyspark.sql import SparkSession

from sluice import streams
from sluice.backoff import Backoff
from sluice.errors import ApplyError, ServiceError, UsageError, WriterFenced
from sluice.health.endpoint import Answer, Health, HealthServer
from sluice.health.tls import TlsFiles
from sluice.stopping import Stop
from sluice.store.opening import open_store
from sluice.telemetry import logs
from sluice.telemetry.crash import leave_no_values_behind
from sluice.telemetry.exposition import merged
from sluice.telemetry.metered_store import MeteredStore
from sluice_spark import session as spark_session
from sluice_spark.applier import Applier
from sluice_spark.configuration import Configuration, with_present_keys
from sluice_spark.options import ApplyOptions
from sluice_spark.telemetry import ApplyTelemetry
from sluice_spark.workers import Turns

PAUSES_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
STEADY_SECONDS = 300.0
"""A pipeline that was applied this long begins again at the first pause."""
_OVER_SECONDS = 2.0
_LOOK_SECONDS = 0.2

_log = structlog.get_logger("sluice.apply")


class Pipeline:
    """One pipeline in a thread of its own, from `start` to `stop`. `over` is called when the whole process is to
    end.
    """

    def __init__(self, options: ApplyOptions, session: SparkSession, fleet: "Fleet") -> None:
        self.options = options
        self._session, self._fleet = session, fleet
        self._asked = threading.Event()
        self._stop = threading.Event()
        """Of the applier that runs now, or comes next."""
        self._ended = False
        self._configuration: Configuration | None = None
        self.telemetry = ApplyTelemetry(options)
        self.state, self.error, self.code, self.restarts = "starting", "", 0, 0
        self._thread = threading.Thread(target=self._run, name=options.pipeline, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self) -> None:
        """Begins it again if it failed for good, and reads its configuration again if it runs."""
        self._asked.set()
        if self._configuration is not None:
            self._configuration.ask()

    def terminate(self) -> None:
        self._ended = True
        self._stop.set()
        self._asked.set()

    def join(self, seconds: float) -> bool:
        """Whether it has ended in that time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def may_pass(self, failure: ServiceError, *, after: float) -> bool:
        """Whether it is tried again by itself, so many seconds after the start of this process. A killed one leaves its
        leases behind until they run out.
        """
        if isinstance(failure, WriterFenced):
            return after < self.options.left_behind_seconds
        return failure.exit_code == ApplyError.exit_code

    def status(self) -> dict[str, Any]:
        state, error, code, health = self.state, self.error, self.code, self.telemetry.health
        if state == "running" and (before_or_after := health.ready_problems()):
            state = before_or_after[0]
        elif state == "running":
            error, code = self.telemetry.obstacle or "; ".join(health.live_problems()), 0
            state = "waiting" if error else state
        return {
            "state": state,
            "error": error or None,
            "exit_code": code or None,
            "restarts": self.restarts,
        }

    def _run(self) -> None:
        structlog.contextvars.bind_contextvars(pipeline=self.options.pipeline)
        backoff, first = Backoff(PAUSES_SECONDS), time.monotonic()
        while not self._ended:
            began = time.monotonic()
            try:
                self._apply()
                continue  # it was asked to stop, or to take other keys
            except ServiceError as error:
                failure: ServiceError = error
            except Exception as error:  # noqa: BLE001 - it concerns this pipeline alone; its text may hold a row
                _log.error("the applier of a pipeline failed", exc_info=error)
                failure = ServiceError(f"an unexpected error ({type(error).__name__})")
            if self._fleet.is_over():
                return
            passes = self.may_pass(failure, after=time.monotonic() - first)
            self.error, self.code = str(failure), failure.exit_code
            self.state = "waiting" if passes else "failed"
            _log.error("the applier of a pipeline stopped", error=failure, hint=failure.hint, tried_again=passes)
            if time.monotonic() - began > STEADY_SECONDS:
                backoff.reset()
            self._asked.wait(backoff.next() if passes else None)
            self._asked.clear()
            self.restarts += 1
        self.state = "stopped"

    def _apply(self) -> None:
        options = with_present_keys(self.options)
        self._fleet.reach(options)
        self._stop = threading.Event()
        if self._ended:
            return
        options = self._fleet.shared(options)
        telemetry = self.telemetry
        store = MeteredStore(
            open_store(options.spool_uri, prefix=f"{options.pipeline}/", options=options.spool_options),
            telemetry.metrics,
        )

        def names() -> list[str]:
            return applier.names()

        configuration = Configuration(options, names=names, rotated=self._fleet.begin_again)
        applier = Applier(
            options,
            store,
            self._session,
            stop=self._stop,
            telemetry=telemetry,
            fresh=configuration.fresh,
            refused=lambda: configuration.refused,
            turns=Turns(self._fleet.slots, self._stop),
        )
        self._configuration = configuration
        telemetry.health.not_ready("starting")
        self.state = "running"  # from its first round on
        try:
            applier.run()
        finally:
            self._configuration = None
            configuration.close()


class Fleet:
    """The pipelines that there are. `take` is called from one thread, everything else from any."""

    def __init__(
        self, session: SparkSession, first: ApplyOptions, options: Mapping[str, ApplyOptions], *, workers: int
    ):
        self._session, self._first = session, first
        self._has_s3 = spark_session.needs_s3(*options.values())
        self._workers = workers
        self.slots = threading.Semaphore(workers)
        self._lock = threading.Lock()
        self._ways: dict[str, dict[str, str]] = {}
        """By pipeline, what it gave Spark to reach its stores; those of pipelines that left stay in the JVM."""
        self.pipelines: dict[str, Pipeline] = {}
        self._again, self.over = threading.Event(), threading.Event()

    def take(self, wanted: Mapping[str, ApplyOptions]) -> None:
        """From now on these are the pipelines. Returns when those that left, or changed, have stopped."""
        if spark_session.needs_s3(*wanted.values()) and not self._has_s3:
            _log.info("a pipeline needs the jars for S3, Spark begins again")
            self.begin_again()
            return
        leaving = [
            one
            for name, one in self.pipelines.items()
            if name not in wanted or _identity(one.options) != _identity(wanted[name])
        ]
        for one in leaving:
            one.terminate()
        for one in leaving:
            if not one.join(one.options.stop_seconds + _OVER_SECONDS):
                _log.error("a pipeline does not stop, the applier begins again", pipeline=one.options.pipeline)
                self.begin_again()
                return
            with self._lock:
                del self.pipelines[one.options.pipeline]
        for name, options in sorted(wanted.items()):
            if name in self.pipelines:
                self.pipelines[name].ask()
                continue
            one = Pipeline(options, self._session, self)
            with self._lock:
                self.pipelines[name] = one
            one.start()

    def reach(self, options: ApplyOptions) -> None:
        """Raises UsageError when this session cannot serve a pipeline with these options."""
        if (options.spark_master, options.spark_conf) != (self._first.spark_master, self._first.spark_conf):
            raise UsageError(
                f"apply.spark_master and apply.conf must be those of {self._first.pipeline}, whose session this is",
                hint="give all pipelines of the fleet the same, or run this pipeline in a separate fleet",
            )
        ways = spark_session.ways_to_stores(options)
        with self._lock:
            other = {name: given for name, given in self._ways.items() if _differ(given, ways)}
            if options.pipeline in other or not other.keys() <= self.pipelines.keys():
                # Its own of before, or those of a pipeline that has left. Whoever is in the way still is found again.
                self.begin_again()
                raise ApplyError("Spark restarts with the present keys and endpoints")
            if other:
                raise UsageError(
                    f"{min(other)}, another pipeline of the fleet, reaches the same bucket with other keys or by "
                    "another endpoint",
                    hint="give both the same options, or run this pipeline in a separate fleet",
                )
            spark_session.reach(self._session, ways)
            self._ways[options.pipeline] = {**self._ways.get(options.pipeline, {}), **ways}

    def shared(self, options: ApplyOptions) -> ApplyOptions:
        """`options` with a share of what one pipeline alone might take."""
        with self._lock:
            count = max(1, len(self.pipelines))
        workers, keys = min(options.workers, self._workers), options.key_cache_bytes // count
        return replace(options, listen="", workers=workers, key_cache_bytes=keys)

    def begin_again(self) -> None:
        """The process ends, to be started again."""
        self._again.set()
        self.over.set()

    def is_over(self) -> bool:
        """Whether the process ends. It does when Spark has stopped."""
        gone = self.over.is_set() or spark_session.is_gone(self._session)
        if gone and not self.over.is_set():
            _log.error("Spark has stopped, the applier begins again")
            self.begin_again()
        return gone

    @property
    def begins_again(self) -> bool:
        return self._again.is_set()

    def stop(self, seconds: float) -> bool:
        """Lets all pipelines finish what they hold. Whether they did in that time."""
        for one in self._all():
            one.terminate()
        until = time.monotonic() + seconds
        late = [one for one in self._all() if not one.join(max(0.0, until - time.monotonic()))]
        return not late

    def _all(self) -> list[Pipeline]:
        with self._lock:
            return list(self.pipelines.values())

    # what it answers

    def render(self) -> bytes:
        return merged(("apply", one.telemetry.metrics.render()) for one in self._all())

    def status(self) -> dict[str, Any]:
        return {"schema_version": 1, "pipelines": {one.options.pipeline: one.status() for one in self._all()}}

    def beside(self, path: str, query: str) -> Answer | None:
        """/NAME/wait."""
        name, _, below = path.removeprefix("/").partition("/")
        one = self.pipelines.get(name)
        if one is None or below != "wait":
            return None
        code, said = one.telemetry.readable.wait(parse_qs(query, keep_blank_values=True, errors="replace"))
        return Answer(code, json.dumps(said).encode() + b"\n", "application/json")


@click.command()
@click.option("--listen", default="", help="Without it: telemetry.apply_listen, with the token and the certificate.")
@click.option("--workers", type=int, required=True)
def main(listen: str, workers: int) -> None:
    """Apply the spools of many pipelines."""
    leave_no_values_behind()
    try:
        code = run(listen, workers)
    except ServiceError as error:
        _log.error("the applier stopped", error=error, hint=error.hint)
        code = error.exit_code
    except Exception as error:  # noqa: BLE001 - Python would print its text, which may hold a row
        _log.error("the applier failed", exc_info=error)
        code = ServiceError.exit_code
    sys.stdout.flush()
    os._exit(code)  # threads that still wait for a store are daemons of Python, not of the libraries below


def run(listen: str, workers: int) -> int:
    """Serves the pipelines of standard input until a signal, or its end. Returns the exit code."""
    signalled = threading.Event()

    def asked(_number: int, _frame: FrameType | None) -> None:
        if signalled.is_set():
            os._exit(143)
        signalled.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what changed comes on standard input
    options = _read(sys.stdin.buffer)
    if options is None or signalled.is_set():
        return 0
    _configure_logging(options)
    first, others = _first(options), list(options.values())
    spark_session.fetch_jars(first, others=others, stopped=signalled.is_set)
    if signalled.is_set():
        return 0
    session = spark_session.start(first, others=others)
    signal.signal(signal.SIGINT, asked)  # starting Spark installs its own handler
    fleet = Fleet(session, first, options, workers=workers)
    health = Health(ApplyTelemetry(first).metrics)
    server = _served(fleet, health, replace(first, listen=listen) if listen else first)
    health.started()
    health.ready()
    threading.Thread(target=_follow, args=(fleet, options), name="fleet", daemon=True).start()
    # Not for ever at once: a signal that another thread took is heard between two waits.
    while not (fleet.over.wait(_LOOK_SECONDS) or signalled.is_set()):
        pass
    seconds = max(one.options.stop_seconds for one in fleet.pipelines.values()) if fleet.pipelines else 1.0
    stopping = Stop(seconds + 2 * _OVER_SECONDS)
    stopping.when_over(lambda: os._exit(ApplyError.exit_code))
    stopping.ask()
    whole = fleet.stop(seconds)
    if server is not None:
        server.close()
    spark_session.stop(session)
    stopping.done()
    return 0 if whole and not fleet.begins_again else ApplyError.exit_code


def _served(fleet: Fleet, health: Health, options: ApplyOptions) -> HealthServer | None:
    """Listens as `options` say; nowhere if they name no address."""
    if not options.listen:
        return None
    return HealthServer(
        options.listen,
        metrics=fleet,
        health=health,
        status=fleet.status,
        beside=fleet.beside,
        setting="telemetry.apply_listen",
        token_file=options.token_path,
        tls=TlsFiles(*options.tls_files),
    )


def _follow(fleet: Fleet, options: Mapping[str, ApplyOptions]) -> None:
    wanted: Mapping[str, ApplyOptions] | None = options
    try:
        while wanted is not None and not fleet.over.is_set():
            fleet.take(wanted)
            wanted = _read(sys.stdin.buffer)
            if wanted is not None:
                _configure_logging(wanted)
    except Exception as error:  # noqa: BLE001 - nothing else is heard of this thread
        _log.error("the pipelines cannot be read, the applier begins again", exc_info=error)
        fleet.begin_again()
    fleet.over.set()


def _read(source: BinaryIO) -> dict[str, ApplyOptions] | None:
    """The next line; None at the end, when whoever started this process has ended. Raises UsageError."""
    line = source.readline()
    if not line:
        return None
    return {name: ApplyOptions.from_json(json.dumps(value)) for name, value in json.loads(line).items()}


def _first(options: Mapping[str, ApplyOptions]) -> ApplyOptions:
    """What the JVM is started with: memory for the pipeline that asks for most of it."""
    ordered = [options[name] for name in sorted(options)]
    memory = max((one.driver_memory for one in ordered), key=lambda text: int(text.rstrip("m")))
    return replace(ordered[0], driver_memory=memory)


def _differ(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return any(other.get(name, value) != value for name, value in one.items())


def _identity(options: ApplyOptions) -> tuple[object, ...]:
    """What a running applier cannot change."""
    return options.fixed_settings, options.config_files


def _configure_logging(options: Mapping[str, ApplyOptions]) -> None:
    """Logs as the first pipeline says, without the secrets of any."""
    secrets = [secret for one in options.values() for secret in one.secrets]
    first = options[min(options)] if options else None
    if first is not None:
        logs.configure(log_format=first.log_format, level=first.log_level, secrets=secrets)


if __name__ == "__main__":
    streams.prepare()
    main()
