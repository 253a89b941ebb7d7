"""One process of one pipeline: ingest, in `up` the applier beside it, and the eyes on both.

Invariant: a stop asks both sides to drain and waits for them; a second one exits at once, which is
safe at any moment. Holds no logic of either side.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from sluice import signals
from sluice.errors import Interrupted, ServiceError, UsageError
from sluice.health.endpoint import NO_TLS, Health, HealthServer
from sluice.health.export.observer import Observer
from sluice.health.neighbours import Neighbours
from sluice.health.reporter import Reporter
from sluice.health.tls import TlsFiles
from sluice.ingest.options import IngestOptions
from sluice.ingest.supervisor import Ingest
from sluice.manifest.targets import TargetsOf
from sluice.process.child_process import ChildProcess, RestartPolicy, executing, shell_status
from sluice.reloading import FileWatch, Reloading
from sluice.stopping import Stop
from sluice.store.base import ObjectStore
from sluice.telemetry.catalogue import CONFIG_HASH, EVENT_LOOP_LAG
from sluice.telemetry.metered_store import MeteredStore
from sluice.telemetry.metrics import Metrics, identify
from sluice.telemetry.recent_errors import RecentErrors
from sluice.tracing.tracer import tracer_for

_EVENTS = "events"
"""What the event loop is called where it shows that it goes round."""
TICK_SECONDS = 0.5
"""How often it does; counters are brought up to date as often."""
_KILL_SECONDS = 1.0
"""Before the end of a stop, a child that has not ended by itself is killed."""
REPORT_SECONDS = 15.0
"""How often slot and apply records are looked at: a few small requests, well inside the 30 s of an
ordinary scrape.
"""


@dataclass(frozen=True, slots=True)
class ApplierCommand:
    """How to start the applier; the environment carries its options, secrets among them. One that was killed keeps
    the next one from the lake for `lease_seconds` at most.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    lease_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Reread:
    """Settings that were read again. `targets_of` are the lake tables that they give a table, `accept` is called
    when they are in force.
    """

    options: IngestOptions
    config_hash: int
    targets_of: TargetsOf
    accept: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Rereading:
    """How to notice and to read a change of the settings, and the lake tables that are in force."""

    watch: FileWatch
    read: Callable[[], Reread]
    targets_of: TargetsOf


@dataclass(frozen=True, slots=True)
class TelemetryOptions:
    """Where to listen, how many tables get series of their own, the file with the token that requests
    need, the files of the certificate, and the fingerprint of the settings. `runbook_url` and
    `pipelines` are for the status page. With `spares_requests` a look at what is stored costs the store little.
    Spans go to `traces` with `traces_headers`, if that is not empty.
    """

    listen: str
    max_tables: int
    token_path: str = ""
    tls: TlsFiles = NO_TLS
    config_hash: int | None = None
    runbook_url: str = ""
    pipelines: Mapping[str, str] = field(default_factory=dict)
    spares_requests: bool = False
    traces: str = ""
    traces_headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def run(
    options: IngestOptions,
    *,
    store: ObjectStore,
    reporter: Reporter,
    telemetry: TelemetryOptions,
    rereading: Rereading | None = None,
    applier: ApplierCommand | None = None,
    until_lsn: int | None = None,
    until_caught_up: bool = False,
) -> int:
    """Runs until stopped, until the target is durable or until an error that needs a human, which
    it raises. Returns the exit code.
    """
    metrics = Metrics(options.pipeline, max_tables=telemetry.max_tables)
    identify(metrics, config_hash=telemetry.config_hash)
    metered = MeteredStore(store, metrics)
    tracer = tracer_for(
        telemetry.traces, telemetry.traces_headers, store=metered, metrics=metrics, pipeline=options.pipeline
    )
    process = Process(
        options,
        store=metered,
        reporter=reporter,
        metrics=metrics,
        applier=applier,
        rereading=rereading,
        telemetry=telemetry,
    )
    server = HealthServer(
        telemetry.listen,
        metrics=metrics,
        health=process.health,
        status=process.observer.status,
        verdict=process.observer.verdict,
        history=process.observer.history,
        token_file=telemetry.token_path,
        tls=telemetry.tls,
        process=("process", options.pipeline, store.describe()),
    )
    if tracer is not None:
        process.ingest.status.commits.on_published = tracer.stored
    signals.arm().hand_to(process.stop)
    signals.arm().hand_reload_to(process.reload)
    structlog.get_logger("sluice").info("listening", address=server.address, pipeline=options.pipeline)
    try:
        return asyncio.run(process.run(until_lsn=until_lsn, until_caught_up=until_caught_up))
    finally:
        server.close()
        if tracer is not None:
            tracer.close()
        process.stopping.done()


class Process:
    """Ingest, applier and observer, tied together by the stop."""

    def __init__(
        self,
        options: IngestOptions,
        *,
        store: ObjectStore,
        reporter: Reporter,
        metrics: Metrics,
        applier: ApplierCommand | None,
        rereading: Rereading | None = None,
        telemetry: TelemetryOptions,
    ) -> None:
        self.stopping = Stop(options.stop_s)
        errors = RecentErrors()
        self.ingest = Ingest(options, store, clock=self.stopping, errors=errors)
        if telemetry.spares_requests:
            status = self.ingest.status  # each epoch has a log of its own
            reporter.spare(lambda: status.stored(), lambda seq: status.entry(seq))  # noqa: PLW0108
        self.health = Health(metrics)
        self._metrics, self._reporter = metrics, reporter
        self._end_code = 0
        self._outcome: ServiceError | int = Interrupted(
            "the stop took longer than stop_timeout",
            hint="nothing is lost: the server sends again what was not acknowledged",
        )
        """How the process ends, once it is known; for when it has to be made to."""
        self.stopping.when_over(self._exit_now)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._applier = (
            ChildProcess(
                applier.command,
                launch=executing(applier.environment),
                on_end=self._applier_ended,
                policy=RestartPolicy(lease_seconds=applier.lease_seconds),
            )
            if applier
            else None
        )
        self.observer = Observer(
            status=self.ingest.status,
            errors=errors,
            reporter=reporter,
            metrics=metrics,
            health=self.health,
            applier=self._applier.seen if self._applier is not None else None,
            neighbours=Neighbours(telemetry.pipelines),
            runbook_url=telemetry.runbook_url,
        )
        metrics.before_render(self.observer.export_verdict)
        self._targets_of = rereading.targets_of if rereading is not None else None
        self._reloading = (
            Reloading(rereading.watch, read=rereading.read, take=self._take, said=self._configuration_said)
            if rereading is not None
            else None
        )
        self.ingest.status.configured_at = time.time()
        self._logger = structlog.get_logger("sluice")

    async def run(self, *, until_lsn: int | None, until_caught_up: bool) -> int:
        self._loop = asyncio.get_running_loop()
        if self.stopping.asked:
            self.ingest.stop()
        # A loop that never goes round is stuck as well.
        self.health.beat(_EVENTS)
        watching = [
            asyncio.create_task(task)
            for task in (
                self._tick(),
                self._repeat(self.observer.observe),
                self._repeat(self.observer.poll_source),
                self._repeat(self.observer.poll_neighbours),
            )
        ]
        self.health.started()
        if self._applier is not None:
            self._applier.start()
        if self._reloading is not None:
            self._reloading.start()
        try:
            await self.ingest.run(until_lsn=until_lsn, until_caught_up=until_caught_up)
            self._outcome = self._end_code
        except ServiceError as error:
            self._outcome = error
            raise
        finally:
            if self._reloading is not None:
                self._reloading.close()
            if self._applier is not None:
                await asyncio.to_thread(
                    self._applier.stop, timeout_seconds=max(self.stopping.left() - _KILL_SECONDS, 0.0)
                )
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            self.observer.close()
        return self._end_code

    def stop(self, number: signal.Signals) -> None:
        """Begins the stop, from any thread and at any time: its clock runs even if the event loop
        stands still, or is not there yet.
        """
        self.stopping.ask()
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self.ingest.stop)
        if self._applier is not None:
            self._applier.terminate()
        self._logger.info("stopping, a second signal exits at once", signal=number.name)

    def reload(self) -> None:
        """Reads the configuration again. From any thread."""
        if self._reloading is not None:
            self._reloading.ask()

    def _take(self, reread: Reread) -> None:
        """In the thread that reads. Raises UsageError for what the settings alone do not show."""
        manifest, before = self.ingest.status.manifest, self._targets_of
        names = [] if manifest is None else manifest.names
        other = [name for name in names if before is not None and before(name) != reread.targets_of(name)]
        if other:
            raise UsageError(
                f"the targets of {', '.join(sorted(other)[:3])} cannot change while a process runs",
                hint="restart ingest and the applier, or restore the old targets; `sluice plan` shows the effect",
            )
        assert self._loop is not None
        self._targets_of = reread.targets_of
        self._reporter.configure(reread.targets_of)
        self._loop.call_soon_threadsafe(self._configure, reread)

    def _configure(self, reread: Reread) -> None:
        self.ingest.reconfigure(reread.options)
        self._metrics.show(CONFIG_HASH, reread.config_hash)
        reread.accept()
        self.ingest.status.configured_at = time.time()

    def _configuration_said(self, reason: str) -> None:
        status = self.ingest.status
        status.configuration_refused_at = time.time() if reason else 0.0
        status.configuration_refused = reason

    def _exit_now(self) -> None:
        """The time of the stop is over: ends the process, whatever still waits in it. In a thread
        of its own.
        """
        outcome = self._outcome
        if isinstance(outcome, ServiceError):
            self._logger.error(
                "exiting without waiting for what does not end",
                error=str(outcome),
                hint=outcome.hint,
                exit_status=outcome.exit_code,
            )
            os._exit(outcome.exit_code)
        self._logger.warning("exiting without waiting for what does not end", exit_status=outcome)
        os._exit(outcome)

    def _applier_ended(self, code: int) -> None:
        self._end_code = shell_status(code)
        self._logger.error("the applier ended, so this process ends too", exit_status=self._end_code)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.ingest.stop)

    def count(self) -> None:
        """Brings status and counters up to this moment; costs microseconds. On the event loop."""
        self.ingest.refresh()
        self.observer.count()

    async def _tick(self) -> None:
        while True:
            due = time.monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self._metrics.observe(EVENT_LOOP_LAG, max(0.0, time.monotonic() - due))
            self.health.beat(_EVENTS)
            try:
                self.count()
            except Exception as error:
                self._logger.error("metrics could not be brought up to date", exc_info=error)

    async def _repeat(self, look: Callable[[], None]) -> None:
        while True:
            try:
                await asyncio.to_thread(look)
            except Exception as error:
                self._logger.error("metrics could not be brought up to date", exc_info=error)
            await asyncio.sleep(REPORT_SECONDS)
