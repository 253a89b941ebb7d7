"""Metrics, liveness and readiness of the applier, served on its own endpoint while it runs.

Invariant: liveness says that the scheduling loop goes round. Windows run in threads of their own
and may take hours; neither they nor an unavailable store make the process look dead. Decides
nothing, and no error here fails the work.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog

from sluice.contract.applied import MaintenanceRun
from sluice.errors import WriterFenced
from sluice.health.endpoint import Health, HealthServer
from sluice.health.readable import Readable
from sluice.health.tls import TlsFiles
from sluice.telemetry import catalogue
from sluice.telemetry.error_counts import ErrorCounts
from sluice.telemetry.metrics import Metrics, identify
from sluice_spark.applied_window import Applied
from sluice_spark.lake.direct.key_cache import KeyCache
from sluice_spark.lake.failures import CommitConflict
from sluice_spark.options import ApplyOptions

LOOP_SECONDS = 600.0
"""The loop asks the store a handful of times per round, and each question may take its two minutes
before it fails and ends the process.
"""
_LOOP, _LEASE = "apply", "lease"
_NO_WAY = "none"


class ApplyTelemetry:
    """Fed by the applier's loop and, for the lease, by the thread that renews it."""

    def __init__(self, options: ApplyOptions) -> None:
        self.metrics = Metrics(options.pipeline, component="apply")
        self.health = Health(self.metrics, loop_seconds=LOOP_SECONDS)
        self.readable = Readable()
        """Through where the lake can be read, for those who wait for it."""
        self._errors = ErrorCounts()
        self._workers = options.workers
        self._token_path = options.token_path
        self._tls = TlsFiles(*options.tls_files)
        self._process = ("applier", options.pipeline, options.spool_uri)
        self._succeeded = 0.0
        self.obstacle = ""
        """Why the loop comes no further, empty while it goes round."""
        identify(self.metrics, config_hash=options.config_hash)
        self.metrics.set(catalogue.APPLY_LEASE, 0)
        self.metrics.set(catalogue.RETRY_DELAY, 0)
        self._errors.announce(self.metrics, catalogue.APPLY_COMPONENTS)
        for outcome in catalogue.APPLY_RUNS.labels["outcome"]:
            self.metrics.add(catalogue.APPLY_RUNS, 0, outcome=outcome)
        for kind in catalogue.APPLY_CONFLICTS.labels["kind"]:
            self.metrics.add(catalogue.APPLY_CONFLICTS, 0, kind=kind)
        for op in catalogue.APPLY_ROWS.labels["op"]:
            self.metrics.add(catalogue.APPLY_ROWS, 0, op=op)
        for way in catalogue.APPLY_WINDOWS.labels["way"]:
            self.metrics.add(catalogue.APPLY_WINDOWS, 0, way=way)
        for turn in catalogue.MAINTENANCE_TURNS.labels["turn"]:
            self.metrics.add(catalogue.MAINTENANCE_SECONDS, 0, turn=turn)
            for outcome in catalogue.MAINTENANCE_TURNS.labels["outcome"]:
                self.metrics.add(catalogue.MAINTENANCE_TURNS, 0, turn=turn, outcome=outcome)
        for task in catalogue.MAINTENANCE_RUNS.labels["task"]:
            self.metrics.add(catalogue.MAINTENANCE_RUNS, 0, task=task)
            for change in catalogue.MAINTENANCE_FILES.labels["change"]:
                self.metrics.add(catalogue.MAINTENANCE_FILES, 0, task=task, change=change)
                self.metrics.add(catalogue.MAINTENANCE_BYTES, 0, task=task, change=change)

    def reconfigured(self, options: ApplyOptions) -> None:
        """`options` are in force now."""
        self.metrics.show(catalogue.CONFIG_HASH, options.config_hash)

    @contextmanager
    def served(self, listen: str) -> Iterator[None]:
        """Listens on `listen` inside the block, empty for nowhere. Raises WriterFenced when another applier of
        this pipeline does, UsageError when it cannot listen there.
        """
        if not listen:
            yield
            return
        server = HealthServer(
            listen,
            metrics=self.metrics,
            health=self.health,
            wait=self.readable.wait,
            setting="telemetry.apply_listen",
            token_file=self._token_path,
            tls=self._tls,
            process=self._process,
        )
        structlog.get_logger("sluice.apply").info("listening", address=server.address)
        self.health.started()
        try:
            yield
        finally:
            self.readable.close()
            server.close()

    @property
    def succeeded_at(self) -> float:
        """When something was last committed or nothing was left to do, unix seconds; 0 before."""
        return self._succeeded

    def owns(self, *, held: bool) -> None:
        """The lease was taken or lost."""
        self.metrics.set(catalogue.APPLY_LEASE, float(held))

    def lease_renewed(self) -> None:
        self.metrics.set(catalogue.HEARTBEAT, time.time(), loop=_LEASE)

    def round(self, *, running: int, backlog: int, read_seq: int) -> None:
        """The loop went round."""
        self.health.beat(_LOOP)
        self.health.ready()
        self.obstacle = ""
        self.metrics.set(catalogue.APPLY_WORKERS, running, state="busy")
        self.metrics.set(catalogue.APPLY_WORKERS, self._workers - running, state="idle")
        self.metrics.set(catalogue.APPLY_BACKLOG, backlog)
        self.metrics.set(catalogue.APPLY_READ_SEQ, read_seq)
        self._errors.export(self.metrics)

    def keys(self, cache: KeyCache) -> None:
        """What is kept of the lake's keys."""
        self.metrics.advance_to(catalogue.APPLY_KEY_LOOKUPS, cache.hits, result="hit")
        self.metrics.advance_to(catalogue.APPLY_KEY_LOOKUPS, cache.misses, result="miss")
        self.metrics.set(catalogue.APPLY_KEY_BYTES, cache.used, where="memory")
        self.metrics.set(catalogue.APPLY_KEY_BYTES, cache.used_on_disk, where="disk")

    def away(self, error: BaseException) -> None:
        """The loop goes on as soon as the store answers again."""
        self.health.beat(_LOOP)
        self.obstacle = str(error)
        self.note(_LOOP, error)

    def stopping(self) -> None:
        """The loop has ended on purpose."""
        self.health.retire(_LOOP)
        self.health.not_ready("stopping")

    def began(self) -> None:
        """A window was handed to a worker."""
        self.metrics.set(catalogue.APPLY_LAST_ATTEMPT, time.time())

    def applied(self, result: Applied, *, seconds: float) -> None:
        """A window ended well after `seconds`."""
        self.metrics.add(catalogue.APPLY_RUNS, 1, outcome="committed" if result.committed or result.ops else "empty")
        for phase, spent in {**result.seconds, "total": seconds}.items():
            self.metrics.observe(catalogue.APPLY_DURATION, spent, way=result.way.name or _NO_WAY, phase=phase)
        if result.committed and result.way.name:
            self.metrics.add(catalogue.APPLY_WINDOWS, 1, way=result.way.name)
        self.metrics.add(catalogue.APPLY_CONFLICTS, result.fresh_looks, kind="fresh_look")
        for op, rows in result.ops.items():
            self.metrics.add(catalogue.APPLY_ROWS, rows, op=op)
        self.succeeded()

    def maintenance_ended(
        self, turn: str, outcome: str, *, seconds: float, runs: Mapping[str, MaintenanceRun] | None = None
    ) -> None:
        """A turn of maintenance ended as `outcome` after `seconds`; it ran the tasks of `runs`."""
        self.metrics.add(catalogue.MAINTENANCE_TURNS, 1, turn=turn, outcome=outcome)
        self.metrics.add(catalogue.MAINTENANCE_SECONDS, seconds, turn=turn)
        for task, run in (runs or {}).items():
            self.metrics.add(catalogue.MAINTENANCE_RUNS, 1, task=task)
            for change, files, size in (
                ("removed", run.files_removed, run.bytes_removed),
                ("added", run.files_added, run.bytes_added),
            ):
                self.metrics.add(catalogue.MAINTENANCE_FILES, max(files, 0), task=task, change=change)
                self.metrics.add(catalogue.MAINTENANCE_BYTES, max(size, 0), task=task, change=change)

    def checkpoint_lag(self, versions: int) -> None:
        """So many versions has the table whose newest checkpoint is furthest behind it."""
        self.metrics.set(catalogue.CHECKPOINT_LAG, versions)

    def catalog_names(self, registered: int, failing: int) -> None:
        """So many lake tables have their name in the catalog, and so many names are not as they should be."""
        self.metrics.set(catalogue.CATALOG_NAMES, registered, state="registered")
        self.metrics.set(catalogue.CATALOG_NAMES, failing, state="failing")

    def succeeded(self) -> None:
        """Something was committed, or nothing is left to do."""
        self._succeeded = time.time()
        self.metrics.set(catalogue.APPLY_LAST_SUCCESS, self._succeeded)

    def stale(self, error: BaseException) -> None:
        """A window's table cannot follow."""
        self.metrics.add(catalogue.APPLY_RUNS, 1, outcome="stale")
        self.note(_LOOP, error)

    def failed(self, error: BaseException) -> None:
        """A window ended with an error that may pass."""
        self.metrics.add(catalogue.APPLY_RUNS, 1, outcome="failed")
        self.note(_LOOP, error)

    def waits(self, seconds: float) -> None:
        """The pause before the next try, 0 when it is over."""
        self.metrics.set(catalogue.RETRY_DELAY, seconds)

    def note(self, component: str, error: BaseException) -> None:
        """An error of `component`, which is one of the catalogue's."""
        if isinstance(error, CommitConflict | WriterFenced):
            self.metrics.add(
                catalogue.APPLY_CONFLICTS, 1, kind="fenced" if isinstance(error, WriterFenced) else "concurrent"
            )
        self._errors.note(component, error)
        self._errors.export(self.metrics)
