"""The states of a table, and what follows from each: the only list of them."""

from enum import StrEnum


class State(StrEnum):
    """What ingest or the applier says of a table. Declared from the best to the worst.

    `live`: its initial rows and its changes are followed. `snapshot`: the initial rows are still to
    come. `pending`: the catalog shows a shape that the stream has not reached. `detached`: the
    publication no longer carries it. `quarantined`: it cannot be carried, or its windows fail again
    and again. `stale`: the lake table is not equal to the source any more.
    """

    LIVE = "live"
    SNAPSHOT = "snapshot"
    PENDING = "pending"
    DETACHED = "detached"
    QUARANTINED = "quarantined"
    STALE = "stale"

    @property
    def severity(self) -> int:
        """Of two sides that differ, the state of the greater severity is shown."""
        return _ORDER.index(self)

    @property
    def is_followed(self) -> bool:
        """Rows of the table are spooled and applied. In every other state nothing is spooled until
        the state changes.
        """
        return self in (State.LIVE, State.SNAPSHOT, State.PENDING)

    @property
    def has_initial_rows(self) -> bool:
        """The table is followed, and its initial rows are there."""
        return self in (State.LIVE, State.PENDING)

    @property
    def needs_applier(self) -> bool:
        """A table in this state is a reason to expect an applier that runs."""
        return self not in (State.DETACHED, State.QUARANTINED)

    @property
    def is_problem(self) -> bool:
        """There is a kind of problem named `table.<state>`."""
        return self not in (State.LIVE, State.DETACHED)


_ORDER = tuple(State)
WORST_FIRST = (State.STALE, State.QUARANTINED, State.SNAPSHOT, State.PENDING, State.LIVE, State.DETACHED)
"""The order of a list for people: tables that are gone come last, and a snapshot is shown before a
change of shape, because it takes longer.
"""
