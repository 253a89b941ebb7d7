"""A lake that a pipeline of Sluice keeps: which boundaries it offers, and all tables as of one of them.

Invariant: what is handed out is of one boundary. The newest one is looked for anew each time, and never goes back:
who has seen a position finds it, or a later one, in each later answer.
"""

import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from sluice_lake.as_of import AsOf
from sluice_lake.boundary import FOLDER, Boundary, Table, decoded, key_of, number_in
from sluice_lake.errors import (
    BoundaryExpired,
    BoundaryNotReached,
    NoBoundary,
    TableLeftOut,
    UnusableArgument,
    WaitTimedOut,
)
from sluice_lake.objects import Objects
from sluice_lake.positions import lsn_of, show, time_of

LATEST = "latest"
SHORTEST_POLL, LONGEST_POLL = 0.02, 0.5
"""Seconds between two looks for a later boundary: the first, and the longest after many."""
POLL_GROWS = 1.3
LISTED_AGAIN_SECONDS = 5.0
"""Between two listings while boundaries are waited for, in case that one number is missing."""
AT_ONCE = 16


class Lake:
    """The lake at `uri`, which is `lake.uri` of the pipeline. `storage_options` are those of its store, named as for
    `deltalake`; what they leave out comes from the environment. `pipeline` may be left out where one pipeline alone
    publishes there.

    Raises UnusableArgument; contacts nothing yet. Methods raise LakeUnavailable when the store does not answer. An
    object may be used by several threads.
    """

    def __init__(self, uri: str, *, pipeline: str = "", storage_options: Mapping[str, str] | None = None) -> None:
        self._options = dict(storage_options or {})
        self._objects = Objects(uri, self._options)
        self._pipeline = pipeline

    @property
    def pipeline(self) -> str:
        """The pipeline whose boundaries are read. When none is named, raises NoBoundary while there is none, and
        UnusableArgument when there are several.
        """
        if not self._pipeline:
            found = self.pipelines()
            if not found:
                raise NoBoundary(
                    f"the lake at {self._objects.uri} offers boundaries of no pipeline yet",
                    hint="an applier publishes them once a table is live",
                )
            if len(found) > 1:
                raise UnusableArgument(
                    f"the lake at {self._objects.uri} offers boundaries of several pipelines: {', '.join(found)}",
                    hint="name the pipeline",
                )
            self._pipeline = found[0]
        return self._pipeline

    def pipelines(self) -> list[str]:
        """The pipelines that have published boundaries here."""
        return self._objects.below(FOLDER)[0]

    def boundaries(self, *, after: int = 0) -> list[Boundary]:
        """The boundaries that can be read now, oldest first; only those with a number above `after`."""
        numbers = [number for number in self._numbers() if number > after]
        return [boundary for boundary in self._each(numbers) if boundary is not None]

    def offered(self, number: int) -> Boundary | None:
        """The boundary of this number, None where the lake does not offer it."""
        return self._read(number)

    def newest(self) -> Boundary:
        """The newest boundary. Raises NoBoundary."""
        found = self._newest()
        if found is None:
            raise NoBoundary(
                f"the lake at {self._objects.uri} offers no boundary of pipeline {self.pipeline}",
                hint="an applier publishes the first one once a table is live",
            )
        return found

    def tables(self) -> list[Table]:
        """The tables of the newest boundary. Raises NoBoundary."""
        return list(self.newest().tables)

    def as_of(self, moment: str = LATEST, *, lsn: str | int | None = None, time: str | datetime | None = None) -> AsOf:
        """All tables at one boundary: the newest one, or the last one that holds nothing which ended after `lsn`, or
        was committed after `time`. Its own position and time are in `boundary` of what is returned.

        Raises BoundaryNotReached when the lake has not come so far, BoundaryExpired when it does not offer what was
        there then any more, NoBoundary, UnusableArgument.
        """
        if moment != LATEST or (lsn is not None and time is not None):
            raise UnusableArgument("ask for one of: lsn=..., time=..., 'latest'")
        newest = self.newest()
        if lsn is not None:
            wanted = lsn_of(lsn)
            if wanted > newest.lsn:
                raise BoundaryNotReached(
                    f"the lake has come to {newest}, and not yet to {show(wanted)}",
                    hint="wait_for waits until it has",
                )
            return self._at(self._last(newest, lambda one: one.lsn <= wanted, what=show(wanted)))
        if time is not None:
            at = time_of(time)
            if at > newest.reached:
                raise BoundaryNotReached(
                    f"the lake is known to have what was committed through {newest.reached.isoformat()}, and not yet "
                    f"through {at.isoformat()}",
                    hint="a later transaction of a table of the pipeline shows more; or ask for 'latest'",
                )
            return self._at(self._last(newest, lambda one: one.time <= at, what=at.isoformat()))
        return self._at(newest)

    def wait_for(
        self,
        lsn: str | int,
        timeout: float,
        *,
        tables: Sequence[str] = (),
        manifest: Callable[[], str] | None = None,
        waited: float = 0.0,
    ) -> Boundary:
        """Returns the newest boundary as soon as it holds everything that ended at or before `lsn`, and has the
        `tables` that are named. From then on `as_of()` has it. With `manifest`, a boundary of another one than it
        names does not count: an `lsn` of the present source says nothing of the source before. `waited` are
        the seconds of `timeout` that have passed already.

        Raises WaitTimedOut after `timeout` seconds, TableLeftOut when the position was reached by then without one of
        `tables`.
        """
        wanted, until, pause = lsn_of(lsn), clock.monotonic() + timeout - waited, SHORTEST_POLL
        newest, listed_at = self._newest(), clock.monotonic()
        while True:
            left_out, other = None, False
            if newest is not None and newest.lsn >= wanted:
                other = manifest is not None and newest.manifest != manifest()
                left_out = None if other else _left_out(newest, tables)
                if not other and left_out is None:
                    return newest
            if clock.monotonic() >= until:
                raise left_out or WaitTimedOut(
                    f"the lake did not come to {show(wanted)} within {timeout:g} s: it is at "
                    + ("no boundary yet" if newest is None else f"{newest}{' of an earlier spool' * other}"),
                    hint="`sluice status` says what prevents it",
                )
            clock.sleep(max(0.0, min(pause, until - clock.monotonic())))
            if newest is None or clock.monotonic() - listed_at >= LISTED_AGAIN_SECONDS:
                later, listed_at = self._newest(), clock.monotonic()
            else:
                later = self._after(newest)
            moved = later is not None and (newest is None or later.number > newest.number)
            newest, pause = (later, SHORTEST_POLL) if moved else (newest, min(pause * POLL_GROWS, LONGEST_POLL))

    def expires_at(self, boundary: Boundary) -> datetime | None:
        """When the lake stops offering `boundary`, None while it is the newest one. Raises BoundaryExpired."""
        if self._read(boundary.number) is None:
            raise self._expired(str(boundary))
        following = self._read(boundary.number + 1)
        return following.published_at + following.retention if following is not None else None

    def _at(self, boundary: Boundary) -> AsOf:
        return AsOf(boundary, self._objects.uri, self._options, gone=lambda: self._gone(boundary))

    def _gone(self, boundary: Boundary) -> BoundaryExpired | None:
        return None if self._read(boundary.number) is not None else self._expired(str(boundary))

    def _last(self, newest: Boundary, holds: Callable[[Boundary], bool], *, what: str) -> Boundary:
        """The last boundary of the newest one's log that `holds`, which those before it do as well."""
        if holds(newest):
            return newest
        numbers = [number for number in self._numbers() if newest.first <= number < newest.number]
        low, high, found = 0, len(numbers) - 1, None
        while low <= high:
            middle = (low + high) // 2
            one = self._read(numbers[middle])
            if one is None or one.manifest != newest.manifest:
                low = middle + 1
            elif holds(one):
                low, found = middle + 1, one
            else:
                high = middle - 1
        if found is None:
            raise self._expired(what)
        return found

    def _expired(self, what: str) -> BoundaryExpired:
        numbers = self._numbers()
        oldest = next((one for one in self._each(numbers[:3]) if one is not None), None)
        return BoundaryExpired(
            f"the lake does not offer {what} any more: "
            + (f"its oldest boundary is {oldest}" if oldest is not None else "it offers no boundary"),
            hint="lake.boundary_retention of the pipeline is how long boundaries stay",
        )

    def _newest(self) -> Boundary | None:
        """The newest one, or None. What expires between a listing and a look is looked for again."""
        for _ in range(3):
            try:
                numbers = self._numbers(last_folder=True)
            except NoBoundary:
                return None
            if not numbers:
                return None
            found = self._read(numbers[-1])
            if found is not None:
                return self._after(found)
        return None

    def _after(self, boundary: Boundary) -> Boundary:
        """The last one of those that follow `boundary` without a gap."""
        while (following := self._read(boundary.number + 1)) is not None:
            boundary = following
        return boundary

    def _numbers(self, *, last_folder: bool = False) -> list[int]:
        """Of the boundaries that are offered, ascending; with `last_folder` at least the newest one."""
        where = f"{FOLDER}{self.pipeline}/"
        found: list[int] = []
        for folder in reversed(self._objects.below(where)[0]):
            found = [number_in(name) for name in self._objects.below(f"{where}{folder}/")[1]] + found
            if last_folder and any(found):
                break
        return sorted(number for number in found if number)

    def _each(self, numbers: Sequence[int]) -> Iterator[Boundary | None]:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="boundaries") as pool:
            yield from pool.map(self._read, numbers)

    def _read(self, number: int) -> Boundary | None:
        data = self._objects.get(key_of(self.pipeline, number))
        return decoded(data) if data is not None else None


def _left_out(boundary: Boundary, tables: Sequence[str]) -> TableLeftOut | None:
    for name in tables:
        try:
            boundary.named(name)
        except TableLeftOut as error:
            return error
    return None
