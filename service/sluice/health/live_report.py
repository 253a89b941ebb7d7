"""The report of a running process: what is stored and what the server said as of the last look, what
the process knows as of now.

Invariants: page, probes and metrics get their verdict and their positions here, so that they agree;
reads what others count and changes nothing.
"""

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime

from sluice.errors import ServiceError, SlotLost
from sluice.health.continuity import check_holds, lost_between
from sluice.health.endpoint import Health
from sluice.health.facts import Away, Facts, ProcessSeen
from sluice.health.process_facts import ProcessFacts
from sluice.health.process_state import ProcessState
from sluice.health.report import Report
from sluice.health.reporter import Reporter
from sluice.health.source_history import SourceHistory
from sluice.health.source_watch import SourceAnswer
from sluice.health.verdict import Verdict, judge
from sluice.health.wal import Positions
from sluice.ingest.status import IngestStatus
from sluice.manifest.values import PipelineState

_HANGS_SECONDS = 20.0
"""A look takes seconds; `status` waits no longer either."""
_FRESH_SECONDS = 1.0
"""How old a report may be that /status answers with: many askers cost one look."""


class LiveReport:
    """Reports of one ingest. `take` and `ask_source` block and may be called from one thread each,
    everything else from any.
    """

    def __init__(
        self, *, status: IngestStatus, reporter: Reporter, process_state: ProcessState, health: Health
    ) -> None:
        self._status = status
        self._reporter = reporter
        self._source = reporter.source
        self._process_state = process_state
        self._health = health
        self._lock = threading.Lock()
        self._report: Report | None = None
        self._stored = Positions(SourceHistory(), None, 0)
        self._unread: Away | None = None
        self._looking_since: float | None = None
        self._reported_at = float("-inf")
        self.ingested_at: float | None = None
        """Everything committed before this time, by our clock, was in the manifest before the last look."""
        self._asked: tuple[SourceAnswer, SlotLost | None] | None = None
        if self._source is not None:
            self._source.keep_open()

    @property
    def has_looked(self) -> bool:
        """What is stored was read, or could not be."""
        return self._report is not None or self._unread is not None

    def take(self, *, asked_within_seconds: float, patience_seconds: float = -1) -> Report:
        """What is stored, at most a second old; after `patience_seconds` of waiting for somebody
        else's look the last one, if there is one. Raises StoreError and ManifestCorrupt.
        """
        last = self._report
        if not self._lock.acquire(timeout=patience_seconds if last is not None else -1):
            assert last is not None
            return last
        try:
            if self._report is None or time.monotonic() - self._reported_at > _FRESH_SECONDS:
                self._looking_since = time.time()
                # Before the look: what is stored during it may be missing from it.
                ingested_at = self._ingested_at()
                self._report = self._looked(asked_within_seconds)
                self.ingested_at = ingested_at
                self._stored = self._report.positions
                self._reported_at = time.monotonic()
                self._unread = None
            return self._report
        except ServiceError as error:
            self._unread = Away.of(error, since=self._unread.since if self._unread is not None else time.time())
            raise
        finally:
            self._looking_since = None
            self._lock.release()

    def now(self, *, patience_seconds: float) -> Report:
        """The report of this moment, the last one that could be taken if the store does not answer.
        Raises StoreError and ManifestCorrupt while there is none.
        """
        try:
            report = self.take(asked_within_seconds=_FRESH_SECONDS, patience_seconds=patience_seconds)
        except ServiceError:
            # Counted by the regular look, which also meets it: how many watch the page is no
            # measure of problems.
            if self._report is None:
                raise
            report = self._report
        return self._present(report, self._process_state.facts())

    def verdict(self) -> Verdict:
        """The verdict of this moment: on what was stored and said by the server at the last look,
        and on what the process knows now. Asks nobody.
        """
        report = self._report
        if report is None:
            return judge(Facts(now=time.time(), unread=self._away(), process=self._seen()))
        return self._present(report, self._process_state.facts()).verdict

    def positions(self) -> Positions:
        """Where the pipeline stands now, also while nothing that is stored can be read. Costs
        microseconds.
        """
        at, status = self._stored, self._status
        if self._source is not None and (answer := self._source.newest) is not None:
            facts = answer.facts
            at = replace(
                at, history=self._source.history, server_lsn=facts.server.wal_end_lsn if facts is not None else None
            )
        return replace(
            at,
            flushed_lsn=max(at.flushed_lsn, status.manifest.through_lsn if status.manifest is not None else 0),
            received_lsn=status.received_lsn,
            complete_lsn=status.complete_lsn,
            oldest_unflushed_at=None if status.oldest_unflushed_us is None else status.oldest_unflushed_us / 1e6,
        )

    def ask_source(self) -> SourceAnswer | None:
        """Asks the server now; None where there is none to ask."""
        if self._source is None:
            return None
        before = self._state()
        answer = self._source.ask()
        after, lost = self._state(), None
        if before is not None and after is not None and answer.facts is not None:
            lost = lost_between(before, after, answer.facts.server, answer.facts.slot)
        self._asked = (answer, lost)
        return answer

    def close(self) -> None:
        """Closes the connection to the server."""
        if self._source is not None:
            self._source.close()

    def _looked(self, asked_within_seconds: float) -> Report:
        """A report of a manifest that holds what this process has written. Raises ManifestCorrupt
        when it does not: then nothing in it can be relied on.
        """
        written = self._status.manifest
        report = self._reporter.take(asked_within_seconds=asked_within_seconds)
        if written is not None:
            check_holds(report.manifest, written)
        return report

    def _ingested_at(self) -> float | None:
        complete_lsn, source = self._status.complete_lsn, self._source
        proven = source.history.complete_at(complete_lsn) if source is not None else None
        return max(proven or 0.0, self._status.commits.complete_at) or None

    def _state(self) -> PipelineState | None:
        if self._status.manifest is not None:
            return self._status.manifest
        return self._report.manifest if self._report is not None else None

    def _away(self) -> Away | None:
        """Why what is stored cannot be read: the last look failed, or the present one gets no answer."""
        since = self._looking_since
        if self._unread is not None or since is None or time.time() - since < _HANGS_SECONDS:
            return self._unread
        hangs = "the object store accepts connections and does not answer"
        return Away(
            "StoreUnavailable", hangs, "check spool.uri, its endpoint and the network", retryable=True, since=since
        )

    def _seen(self) -> ProcessSeen:
        seen = self._process_state.seen()
        return replace(seen, stuck=(*seen.stuck, *self._health.live_problems()))

    def _present(self, report: Report, process: ProcessFacts | None) -> Report:
        """`report` as it is to be judged now, with the newest answer of the server."""
        if process is not None:
            process = replace(process, seen=self._seen())
        own, unread, asked = self._status.manifest, self._away(), self._asked
        if report.manifest.opened is None and own is not None:
            # The first look may have been taken before the first entry.
            report = replace(report, manifest=own)
        # Without a manifest of ours another writer may go on: then only one look at both is fair.
        if asked is not None and (own is not None or unread is not None):
            report = self._with_answer(report, *asked)
        return replace(report, process=process, unread=unread, judged_at=datetime.now(UTC))

    def _with_answer(self, report: Report, answer: SourceAnswer, lost: SlotLost | None) -> Report:
        if report.asked_at is not None and answer.at <= report.asked_at.timestamp():
            return report
        facts = answer.facts
        assert self._source is not None
        return replace(
            report,
            server=facts.server if facts is not None else None,
            slot=facts.slot if facts is not None else None,
            history=self._source.history,
            asked_at=datetime.fromtimestamp(answer.at, UTC),
            lost=lost,
            source_away=Away.of(answer.error) if answer.error is not None else None,
        )
