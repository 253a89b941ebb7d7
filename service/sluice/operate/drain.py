"""Waiting until the lake has everything through one position: what a planned move of the source needs.

Invariant: it ends well only after one look that saw the position published, acknowledged and stated
as complete for every table that the pipeline carries, and the catalog as the manifest has it: what no
row announces (a table that joins, a column) is seen there alone. A table that is left out is named. Must
not change anything, beyond a hint for ingest: ingest and applier do the work, or nobody does.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from sluice.contract.table_state import State
from sluice.errors import Interrupted, ServiceError, SourceUnavailable, may_pass
from sluice.health.report import Report
from sluice.health.tables import TableReport
from sluice.lsn import show

_PAUSE_SECONDS = 1.0
LAST_SECONDS = 5.0
"""For a look that began before the end, so that a short time is enough for one."""
_NAMED = 5
"""Tables that a line names."""


@dataclass(frozen=True, slots=True)
class CatalogSeen:
    """A look at the catalog: the tables that the manifest does not have as they are there, and the newest
    entry of the manifest behind it.
    """

    unfollowed: tuple[str, ...]
    seq: int


@dataclass(frozen=True, slots=True)
class Drained:
    """The lake is complete through `complete_lsn`, which is not before `target`."""

    target: int
    complete_lsn: int


def drain(
    look: Callable[[float], Report],
    read_catalog: Callable[[float], CatalogSeen],
    *,
    target: int | None,
    timeout_s: float,
    said: Callable[[str], None],
    hasten: Callable[[int], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Drained:
    """Returns once everything through `target` is in the lake; None is the end of the server's WAL
    at the first look. A look is given the seconds that it may take; one that began may take LAST_SECONDS
    past the end. `said` gets what is waited for, whenever that changes, and `hasten` the position once.

    Raises Interrupted when that takes longer than `timeout_s`, SlotLost as soon as the pipeline
    cannot go on, and what a look raises and cannot pass.
    """
    deadline, last, hasten_once = clock() + timeout_s, "", cache(hasten)
    followed_seq: int | None = None

    def seconds() -> float:
        return max(LAST_SECONDS, deadline - clock())

    while True:
        try:
            report = look(seconds())
            if report.lost is not None:
                raise report.lost
            target = target if target is not None else _end_of_wal(report)
            hasten_once(target)
            waiting = list(awaited(report, target))
            if not waiting and followed_seq is None:
                # Only now: the server is past the target, wherever that was when it was given.
                seen = read_catalog(seconds())
                if seen.unfollowed:
                    waiting.append(
                        f"the catalog has changes that the manifest does not have: {_listed(list(seen.unfollowed))}"
                    )
                else:
                    followed_seq = seen.seq
            if not waiting and followed_seq is not None:
                waiting += _not_stated(report, followed_seq)
                if not waiting:
                    assert report.complete is not None
                    return Drained(target, report.complete.lsn)
            words = f"waiting for {show(target)}: {'; '.join(waiting)}"
        except ServiceError as error:
            if not may_pass(error):
                raise
            words = f"waiting: {error}"
        if words != last:
            said(words)
            last = words
        if clock() >= deadline:
            raise Interrupted(
                f"the position was not reached within {timeout_s:,.0f} s; {words}",
                hint="run it again, which changes nothing; `sluice status` says what it waits for",
            )
        sleep(_PAUSE_SECONDS)


def _end_of_wal(report: Report) -> int:
    if report.server is None:
        raise SourceUnavailable("the server does not say where its WAL ends", reason="connect_failed")
    return report.server.wal_end_lsn


def awaited(report: Report, target: int) -> Iterator[str]:
    """What is missing until the lake has everything through `target`."""
    manifest = report.manifest
    if manifest.through_lsn < target:
        idle = report.slot is not None and report.slot.active_pid is None
        at = show(manifest.through_lsn) if manifest.opened is not None else "nothing"
        yield f"the manifest has {at}" + (", and no ingest is connected" if idle else "")
    if report.slot is None:
        yield "the server does not answer, or has no slot"
    elif report.slot.confirmed_flush_lsn is None or report.slot.confirmed_flush_lsn < target:
        yield f"acknowledged is {show(report.slot.confirmed_flush_lsn or 0)}"
    carried = [table for table in report.tables if table.state is not State.DETACHED]
    yield from _not_live(carried)
    if report.complete is None:
        yield "the applier has not stated a position yet"
    elif report.complete.lsn < target:
        yield f"the lake is complete through {show(report.complete.lsn)}"
    elif all(table.state is State.LIVE for table in carried):
        # They have come back since; the next statement has them. What was detached does not come back.
        left_out = sorted(name for name, state in report.complete.left_out.items() if state != State.DETACHED)
        if left_out:
            yield f"the applier has left out {_listed(left_out)} so far"


def _not_stated(report: Report, followed_seq: int) -> Iterator[str]:
    """What the applier's statement lacks of the tables and columns that the manifest had at `followed_seq`."""
    carried = sum(table.state is not State.DETACHED for table in report.tables)
    complete = report.complete
    if complete is not None and (complete.seq < followed_seq or len(complete.versions) < carried):
        yield "the applier has not reported on all tables in their present state yet"


def _not_live(tables: list[TableReport]) -> Iterator[str]:
    for state in State:
        names = [table.title for table in tables if table.state is state is not State.LIVE]
        if names:
            yield f"{state}: {_listed(names)}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
