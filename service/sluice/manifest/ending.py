"""A position behind which nothing of a manifest is known: the log as it would be if it had ended there.

Invariant: of the last entry the transactions count that ended through the position, whole, and none that ended later.
What lies behind is read by nobody who is given one. Pure.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

from sluice.contract.entries import Changes, Commits, Entry, Segment
from sluice.manifest.state import reduce
from sluice.manifest.values import PipelineState


@dataclass(frozen=True, slots=True)
class Ending:
    """The manifest through entry `seq`, of whose transactions those that ended through `lsn`."""

    seq: int
    lsn: int

    def cut(self, entry: Entry) -> Entry:
        """`entry` as it is seen: the last one has nothing that ended later. What counts of a segment, its rows say."""
        if entry.seq < self.seq:
            return entry
        body = entry.body
        if isinstance(body, Changes):
            body = replace(body, segments=tuple(one for one in body.segments if begins(one) <= self.lsn))
            body = replace(body, commits=self._commits(body))
        return replace(entry, body=body, through_lsn=self.lsn, examined_lsn=self.lsn)

    def _commits(self, body: Changes) -> Commits:
        commits = body.commits
        count = bisect_right(commits.end_lsn, self.lsn)
        return Commits(
            commits.end_lsn[:count],
            commits.commit_time_us[:count],
            commits.xid[:count],
            {position: origin for position, origin in commits.origins.items() if position < count},
        )

    def state(self, before: PipelineState, entry: Entry, entry_sha256: str) -> PipelineState:
        """The state after the last entry. Raises ManifestCorrupt."""
        return replace(reduce(before, entry, entry_sha256), through_lsn=self.lsn, examined_lsn=self.lsn)


def begins(segment: Segment) -> int:
    """Where the first transaction of `segment` ended."""
    return segment.body.end_lsn if segment.body is not None else segment.first_lsn
