"""Units to the store: uploads run side by side, manifest entries one after the other, in the order
of the units.

Invariant: an entry is appended only after every segment it names is durable, and a receipt is
handed on only after its entry is. A store that cannot be reached delays, it never skips: the same
object is tried again until it is stored, its connection broke or the process is stopped. Units
come in through a `CommitLine`, the part that one connection has of this object: it takes nothing
more after anything of that connection failed.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import structlog

from sluice import faults
from sluice.backoff import Backoff
from sluice.contract import keys
from sluice.contract.entries import Changes, Progress, Segment
from sluice.contract.envelope import OP_NAMES
from sluice.contract.receipt import DurableReceipt
from sluice.contract.schema import TableSchema
from sluice.errors import StoreUnavailable
from sluice.ingest.circuit_breaker import CircuitBreaker
from sluice.ingest.encode.segment import SegmentFile
from sluice.ingest.encode.unit import Unit
from sluice.ingest.status import CommitCounts
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore
from sluice.tracing.spans import Published

UPLOAD_THREADS = 4
UNITS_IN_FLIGHT = 2
"""Finished units that may wait for the store. Past it the decoder waits, then the socket does:
memory has a ceiling.
"""
UPLOADS_IN_FLIGHT = 8
"""Segment files that may wait for the store, 10 to 40 MB each at most."""
POLL_SECONDS = 0.1
"""Between two looks at how far the manifest is."""
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses between tries against a store that does not answer; the last one repeats."""

Answer = TypeVar("Answer")


class CommitLine:
    """One connection's way into the store and the manifest. Used by its decoder thread.
    `on_receipt` is called from the commit thread after each entry.
    """

    def __init__(
        self, committer: "Committer", breaker: CircuitBreaker, *, on_receipt: Callable[[DurableReceipt], None]
    ) -> None:
        self._committer = committer
        self._breaker = breaker
        self._on_receipt = on_receipt

    @property
    def blocking(self) -> bool:
        """Whether the decoder waits here for the store."""
        return self._committer.blocking

    def upload(self, key: str, schema: TableSchema, file: SegmentFile) -> "Future[Segment]":
        """Stores a segment file in the background; an error breaks the connection. Blocks while
        UPLOADS_IN_FLIGHT wait.
        """
        self._breaker.check()
        return self._committer.upload(key, schema, file, breaker=self._breaker)

    def fetch(self, key: str) -> bytes:
        """A file that was stored earlier. Blocks until the store answers."""
        return self._committer.fetch(key, breaker=self._breaker)

    def submit(self, unit: Unit) -> "Future[None]":
        """Publishes `unit` after all that was submitted before it; an error breaks the connection.
        Blocks while UNITS_IN_FLIGHT wait.
        """
        self._breaker.check()
        received_at = time.time()

        def commit() -> None:
            self._on_receipt(self._committer.commit(unit, received_at=received_at))

        return self._committer.submit(self._breaker.guarded(commit))


class Committer:
    """Owns the upload threads, and hands units to the thread of `log`. `on_problem` is called from
    an upload thread for each try that the store did not answer.
    """

    def __init__(
        self,
        store: ObjectStore,
        log: OrderedLog,
        *,
        on_problem: Callable[[StoreUnavailable], None],
        stop: threading.Event,
        counts: CommitCounts,
    ) -> None:
        self._store = store
        self._log = log
        self._on_problem = on_problem
        self._stop = stop
        self._uploads = ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="upload")
        self._upload_permits = threading.BoundedSemaphore(UPLOADS_IN_FLIGHT)
        self._unit_permits = threading.BoundedSemaphore(UNITS_IN_FLIGHT)
        self._logger = structlog.get_logger("spool")
        self._lock = threading.Lock()
        self.blocking = False
        """Whether the decoder waits here for the store."""
        self._awaited: set[int] = set()
        """Somebody waits until the manifest has come there, also where nothing changes."""
        self.counts = counts

    def advance(self, lsn: int) -> None:
        """The manifest is to pass `lsn` soon. From any thread."""
        self._awaited.add(lsn)

    def is_awaited(self, after: int, through: int) -> bool:
        """Whether it is to pass an LSN in between. For the decoder, which then sees to it."""
        self._awaited -= {lsn for lsn in tuple(self._awaited) if lsn <= after}
        return any(lsn <= through for lsn in tuple(self._awaited))

    def wait_through(self, lsn: int) -> bool:
        """Returns when the manifest has come to `lsn`; False when the process is to stop. For one thread."""
        self.advance(lsn)
        while self.stored.through_lsn < lsn:
            if self._stop.wait(POLL_SECONDS):
                return False
        return True

    @property
    def stored(self) -> PipelineState:
        """As the manifest has it."""
        return self._log.stored

    def line(self, breaker: CircuitBreaker, *, on_receipt: Callable[[DurableReceipt], None]) -> CommitLine:
        """The way in for the connection whose work `breaker` guards."""
        return CommitLine(self, breaker, on_receipt=on_receipt)

    def upload(
        self, key: str, schema: TableSchema, file: SegmentFile, *, breaker: CircuitBreaker | None = None
    ) -> "Future[Segment]":
        """Stores a segment file in the background. Blocks while UPLOADS_IN_FLIGHT wait.

        Without `breaker` the file is of a snapshot, which no connection owns.
        """
        kind = "snapshot" if breaker is None else "staged" if key.startswith(keys.STAGE) else "changes"
        self._enter(self._upload_permits, for_decoder=breaker is not None)
        upload = partial(self._upload, key, schema, file, kind, breaker)
        future = self._uploads.submit(upload if breaker is None else breaker.guarded(upload))
        future.add_done_callback(lambda _: self._leave(self._upload_permits))
        return future

    def fetch(self, key: str, *, breaker: CircuitBreaker) -> bytes:
        """A file that was stored earlier. Blocks until the store answers."""
        return self._persist(f"body {key}", lambda: self._store.get(key), breaker)

    def submit(self, commit: Callable[[], None]) -> "Future[None]":
        """Runs `commit` in the commit thread. For CommitLine, which guards what it hands over."""
        self._enter(self._unit_permits, for_decoder=True)
        future = self._log.run(commit)
        future.add_done_callback(lambda _: self._leave(self._unit_permits))
        return future

    def _enter(self, permits: threading.BoundedSemaphore, *, for_decoder: bool) -> None:
        if not permits.acquire(blocking=False):
            self.blocking = for_decoder or self.blocking
            permits.acquire()
            self.blocking = self.blocking and not for_decoder
        with self._lock:
            if not self.counts.under_way:
                self.counts.moved_at = time.time()
            self.counts.under_way += 1

    def _leave(self, permits: threading.BoundedSemaphore) -> None:
        with self._lock:
            self.counts.under_way -= 1
            self.counts.moved_at = time.time()
        permits.release()

    def close(self) -> None:
        """Waits for what is under way (the stop event cuts retries short) and ends the threads."""
        self._log.close()
        self._uploads.shutdown(wait=True)

    def _upload(
        self, key: str, schema: TableSchema, file: SegmentFile, kind: str, breaker: CircuitBreaker | None
    ) -> Segment:
        began = time.monotonic()
        segment = file.segment(key, schema)
        faults.point("segment.put.before")
        self._persist(f"segment {key}", lambda: self._store.put(key, file.data), breaker)
        faults.point("segment.put.after")
        with self._lock:
            stored = self.counts.files[kind]
            stored.files, stored.bytes, stored.rows = (
                stored.files + 1,
                stored.bytes + segment.bytes,
                stored.rows + segment.rows,
            )
        self.counts.file_bytes.add(segment.bytes)
        self.counts.upload_seconds.add(time.monotonic() - began)
        return segment

    def commit(self, unit: Unit, *, received_at: float = 0.0) -> DurableReceipt:
        """Appends `unit`, which was whole at `received_at`, to the manifest. In the commit thread, for CommitLine."""
        changes = unit.changes()
        began = time.monotonic()
        faults.point("commit.before")
        receipt = self._log.publish(changes or Progress(), from_lsn=unit.from_lsn, through_lsn=unit.through_lsn)
        faults.point("commit.after")
        self.counts.entries += 1
        self._count(changes.segments if changes else ())
        if unit.commits.commit_time_us:
            self.counts.last_commit_time_us = unit.commits.commit_time_us[-1]
            self.counts.complete_at = min(unit.commits.commit_time_us[-1] / 1e6, time.time())
        self.counts.commit_seconds.add(time.monotonic() - began)
        if changes is not None and self.counts.on_published is not None:
            self._show(changes, unit, receipt, received_at, self.counts.on_published)
        return receipt

    def _show(
        self,
        changes: Changes,
        unit: Unit,
        receipt: DurableReceipt,
        received_at: float,
        on_published: Callable[[Published], None],
    ) -> None:
        """In the only thread that appends: the newest entry is this one."""
        published = Published.of(
            changes,
            seq=receipt.seq,
            sha256=self.stored.previous_sha256,
            from_lsn=unit.from_lsn,
            through_lsn=unit.through_lsn,
            durable_at=time.time(),
            received_at=received_at,
        )
        if published is not None:
            on_published(published)

    def _count(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self.counts.rows += segment.rows
            self.counts.unchanged_values += sum(segment.unchanged.values())
            table = self._log.stored.tables[segment.table_id]
            rows = self.counts.tables.setdefault(
                (table.schema_name, table.table_name), dict.fromkeys(OP_NAMES.values(), 0)
            )
            for op, count in segment.ops.items():
                rows[OP_NAMES[op]] += count

    def _persist(self, what: str, action: Callable[[], Answer], breaker: CircuitBreaker | None) -> Answer:
        """Runs `action` until the store took it. Raises StoreUnavailable only when stopped or
        when `breaker` is broken, StoreRefused at once.
        """
        backoff = Backoff(RETRY_SECONDS)
        attempt = 0
        while True:
            attempt += 1
            try:
                return action()
            except StoreUnavailable as error:
                with self._lock:
                    self.counts.retries += 1
                self._on_problem(error)
                self._logger.warning("store did not answer, trying again", what=what, error=str(error), attempt=attempt)
                if self._wait_or_stop(backoff.next(), breaker):
                    raise

    def _wait_or_stop(self, pause: float, breaker: CircuitBreaker | None) -> bool:
        """Pauses; returns whether nobody needs the object any more."""
        if breaker is None:
            return self._stop.wait(pause)
        return breaker.wait(pause) or self._stop.is_set()
