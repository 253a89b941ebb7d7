"""One applier per pipeline: who may commit to the lake.

Owns: ownership is a create-only object with a number, so of two takers exactly one wins; the owner
checks before each commit that no later number exists and that it renewed in time. One that could
not, because the store did not answer, claims the next number like any taker before it commits
again: another process that wants the same number loses, or has won before. No claim is ever
removed: a process that was replaced, however long ago, finds the claim that followed its own. On
plain S3 Delta itself cannot stop a second driver from overwriting a commit, so this is the only
fence there. `apply/lease.json` says who owns and since when, for people and for the next taker. A
lease that has not ended is taken over only when its holder is proven dead: a process of this very
machine, boot and process namespace that does not run any more. Other machines may have the same
host names and process numbers. A record from the future says nothing of its end: its holder lives
while the record changes, by the taker's own monotonic clock.
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from sluice import faults
from sluice.contract import keys
from sluice.contract.lease import Holder, Process, Sign
from sluice.errors import ObjectExists, ObjectMissing, ServiceError, StoreError, StoreUnavailable, WriterFenced
from sluice.store.base import ObjectStore
from sluice.telemetry.logs import in_context
from sluice_spark.telemetry import ApplyTelemetry

_log = structlog.get_logger("sluice.apply")
_CLAIMS = f"{keys.APPLY}lease/"
_LOOK_SECONDS = 1.0


class Lease:
    """Held from `acquire` to `release`. `check` is called from worker threads, `renew` from one
    thread.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        seconds: float,
        idle_seconds: float = 0.0,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """The lease lasts `seconds`, or `idle_seconds` after a renewal of an idle holder, where that is more. `wait`
        lets so many seconds pass, and says whether this process was asked to stop.
        """
        self.instance = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:12]}"
        self._store = store
        self._seconds, self._idle_seconds = float(seconds), max(float(seconds), float(idle_seconds))
        self.lasts = self._seconds
        """Seconds from the last renewal on."""
        self._wall = wall
        self._monotonic = monotonic
        self._wait = wait or threading.Event().wait
        self._process = current_process()
        self._number = 0
        self._renewed = 0.0
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Takes the pipeline. Raises as `require_free`."""
        # The holder is read behind the number: one that takes over in between is alive, or has the next number.
        number = self._newest_claim()
        self.require_free()
        self._take(number + 1)
        faults.point("apply.lease.claimed")
        self.renew()

    def require_free(self) -> None:
        """Claims nothing. Raises WriterFenced when a living applier has the pipeline, ManifestCorrupt and FormatTooNew
        when it cannot be read who does.
        """
        holder = self._holder()
        if holder is not None and self._alive(holder):
            raise WriterFenced(
                f"another applier owns this pipeline: {holder.instance}",
                hint="stop it, or wait until its lease ends",
            )

    def renew(self, *, idle: bool = False, sign: Sign = Sign()) -> None:  # noqa: B008 - a frozen value
        """Reports that the owner lives and has come to `sign`, under a new number if the last one lapsed. Raises
        WriterFenced when it no longer owns, StoreUnavailable.
        """
        started = self._monotonic()
        if self._renewed and self._lapsed():
            self._take(self._number + 1)
        # Nobody takes a lease before it lasted for half its time without a change. So a renewal in good time asks for
        # nothing; one that was put off finds out who came meanwhile. `check` asks before each commit in any case.
        if not self._renewed or started - self._renewed >= self.lasts / 2:
            self._require_newest()
        seconds = self._idle_seconds if idle else self._seconds
        with self._lock:  # first: an answer that is lost may have brought the shorter time
            self.lasts = min(self.lasts, seconds)
        self._store.put(keys.APPLY_LEASE, self._state(self._wall(), seconds=seconds, sign=sign))
        with self._lock:
            self._renewed, self.lasts = started, seconds

    def check(self) -> None:
        """Returns when this process may commit now. Raises WriterFenced when another owns,
        StoreUnavailable until a lease that lapsed is taken again.
        """
        lapsed = self._lapsed()
        self._require_newest()
        if lapsed:
            raise StoreUnavailable(
                "the lease lapsed while the object store was away",
                hint="it is taken again when the store answers, unless another applier takes it first",
            )

    def release(self) -> bool:
        """Lets the next applier start at once; False when the store did not take it. Never raises a store's
        error: the lease ends by itself.
        """
        try:
            self._require_newest()
            self._store.put(keys.APPLY_LEASE, self._state(0.0, seconds=self._seconds, sign=Sign()))
        except (StoreError, WriterFenced):
            return False
        return True

    def _lapsed(self) -> bool:
        with self._lock:
            return self._monotonic() - self._renewed >= self.lasts

    def _take(self, number: int) -> None:
        """Claims `number`. One that is there with our name is a claim of ours whose answer was
        lost.
        """
        with suppress(ObjectExists):
            self._store.create(self._claim(number), self.instance.encode())
        self._require_ours(number)
        self._number = number

    def _require_newest(self) -> None:
        """The number that follows ours is free, or ours again, which a worker may see before
        `renew` has said so.
        """
        following = self._number + 1
        if self._store.size(self._claim(following)) is not None:
            self._require_ours(following)

    def _require_ours(self, number: int) -> None:
        if self._store.get(self._claim(number)) != self.instance.encode():
            raise WriterFenced("another applier has taken this pipeline over")

    def _alive(self, holder: Holder) -> bool:
        if not holder.renewed_at or _saw_end(self._process, of=holder.process):
            return False
        # The clocks of two machines may differ by more than a lease, in either direction.
        age = self._wall() - holder.renewed_at
        if age >= holder.seconds:
            return self._is_renewed(holder, within=holder.seconds / 2)
        return age >= 0 or self._is_renewed(holder, within=holder.seconds)

    def _is_renewed(self, holder: Holder, *, within: float) -> bool:
        """Watches the record for some seconds of our own clock; a living holder renews it three times in its lease.
        True also when this process is to stop.
        """
        began = self._monotonic()
        while self._monotonic() - began <= within:
            if self._wait(_LOOK_SECONDS) or self._holder() != holder:
                return True
        return False

    def _holder(self) -> Holder | None:
        try:
            return Holder.decode(self._store.get(keys.APPLY_LEASE))
        except ObjectMissing:
            return None

    def _newest_claim(self) -> int:
        """Looked for from the number in the state on, so that a start costs the same however many
        appliers there were.
        """
        holder = self._holder()
        known = 0 if holder is None else holder.number
        later = self._store.list(_CLAIMS, after=self._claim(known))
        return max((int(key.removeprefix(_CLAIMS)) for key in later), default=known)

    def _state(self, renewed_at: float, *, seconds: float, sign: Sign) -> bytes:
        return Holder(self.instance, self._number, renewed_at, seconds, self._process, sign).encode()

    @staticmethod
    def _claim(number: int) -> str:
        return f"{_CLAIMS}{number:016d}"


class Renewal:
    """Renews `lease` three times in its duration from a thread of its own, from `start` to `close`. `resting` is
    whether its holder has nothing to do, and `sign` what his loop has come to, None before it goes round.
    """

    def __init__(
        self, lease: Lease, telemetry: ApplyTelemetry, *, resting: Callable[[], bool], sign: Callable[[], Sign | None]
    ) -> None:
        self._lease, self._telemetry = lease, telemetry
        self._resting, self._sign = resting, sign
        self._done = threading.Event()
        self._thread = threading.Thread(target=in_context(self._run), name="lease", daemon=True)
        self.fenced: ServiceError | None = None
        """Why the lease is lost."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self._lease.lasts / 3):
            try:
                self._lease.renew(idle=self._resting(), sign=self._sign() or Sign())
                self._telemetry.lease_renewed()
            except StoreUnavailable as error:
                self._telemetry.note("lease", error)
                _log.warning("the lease was not renewed", error=str(error))
            except ServiceError as error:
                self._telemetry.owns(held=False)
                self.fenced = error
                return


def current_process() -> Process:
    """This one."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    boot = _text("/proc/sys/kernel/random/boot_id")
    return Process(_text("/etc/machine-id"), boot, namespace, os.getpid(), _started(os.getpid()))


def _saw_end(process: Process, *, of: Process) -> bool:
    """Whether `process` can see that `of` has ended."""
    here = (process.machine, process.boot, process.namespace)
    if not process.boot or not process.namespace or (of.machine, of.boot, of.namespace) != here:
        return False
    if not _runs(of.pid):
        return True
    started = _started(of.pid)  # not to be seen of the process of another user where /proc hides them
    return bool(of.started and started) and of.started != started


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _started(pid: int) -> str:
    """When the process began, in ticks since the boot. (proc(5): /proc/pid/stat; its second field
    is a name that may hold anything.)
    """
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
