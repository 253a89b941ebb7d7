"""What the catalog says, for one decision after the other: asked between two attempts, never while anybody waits.

Invariant: a decision that lacks an answer changes nothing of its table before it says so. It is made again
with the answer, against the state of that moment.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sluice.contract.catalog_facts import TableFacts

Lookup = Callable[[int], TableFacts | None]
"""The table with this oid, as the catalog has it now; None when it is gone."""


class Unanswered(Exception):
    """The catalog must be asked for the table `oid`, or for the server's position alone (None)."""

    def __init__(self, oid: int | None) -> None:
        super().__init__(oid)
        self.oid = oid


@dataclass(slots=True)
class Answers:
    """`wal_end` is the server's position after all of `facts` were read."""

    wal_end: int | None = None
    facts: dict[int, TableFacts | None] = field(default_factory=dict)


class CatalogAnswers:
    """`lookup` and `wal_end` ask the catalog, which knows today's shapes only and may be ahead of the stream."""

    def __init__(self, lookup: Lookup, wal_end: Callable[[], int]) -> None:
        self._lookup = lookup
        self._ask_wal_end = wal_end
        self._known = Answers()

    @contextmanager
    def known(self, answers: Answers) -> Iterator[None]:
        """Decisions have these meanwhile. For FollowedTables, under its lock."""
        before, self._known = self._known, answers
        try:
            yield
        finally:
            self._known = before

    def facts(self, oid: int) -> TableFacts | None:
        """Raises Unanswered."""
        if oid not in self._known.facts:
            raise Unanswered(oid)
        return self._known.facts[oid]

    def wal_end(self) -> int:
        """A snapshot that is begun now will have whatever committed before it. Raises Unanswered."""
        if self._known.wal_end is None:
            raise Unanswered(None)
        return self._known.wal_end

    def ask(self, missing: Unanswered, answers: Answers) -> None:
        """Adds what is `missing`. Outside of any lock. Raises SourceError."""
        if missing.oid is not None:
            answers.facts[missing.oid] = self._lookup(missing.oid)
        answers.wal_end = self._ask_wal_end()
