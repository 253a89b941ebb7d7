"""The states of a table, and what follows from each: the only list of them."""

from enum import StrEnum


class State(StrEnum):
    """What ingest or the applier says of a table. Declared from the best to the worst.

    `live`: its initial rows and its changes are followed. `snapshot`: the initial rows are still to
    come. `pending`: the catalog shows a shape that the stream has not reached. `paused`: an operator
    asked for it; its changes are spooled and not applied. `detached`: the publication no longer
    carries it. `gap`: changes were lost with the slot; those behind them are spooled, and applied once
    its rows were compared with the source. `quarantined`: it cannot be carried, or its windows fail again
    and again. `stale`: the lake table is not equal to the source any more.

    `paused` is what is shown of a followed table while a pause is in force; the manifest keeps the
    pause beside the table's own state, which goes on.
    """

    LIVE = "live"
    SNAPSHOT = "snapshot"
    PENDING = "pending"
    PAUSED = "paused"
    DETACHED = "detached"
    GAP = "gap"
    QUARANTINED = "quarantined"
    STALE = "stale"

    @property
    def severity(self) -> int:
        """Of two sides that differ, the state of the greater severity is shown."""
        return _ORDER.index(self)

    @property
    def is_followed(self) -> bool:
        """Rows of the table are spooled. In every other state nothing is spooled until the state
        changes.
        """
        return self in (State.LIVE, State.SNAPSHOT, State.PENDING, State.PAUSED, State.GAP)

    @property
    def is_applied(self) -> bool:
        """What is spooled of the table is committed to the lake."""
        return self.is_followed and self is not State.PAUSED

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
        return self not in (State.LIVE, State.PAUSED)


_ORDER = tuple(State)
WORST_FIRST = (
    State.STALE, State.GAP, State.QUARANTINED, State.SNAPSHOT, State.PENDING, State.PAUSED, State.LIVE,
    State.DETACHED,
)  # fmt: skip
"""The order of a list for people: tables that are gone come last, and a snapshot is shown before a
change of shape, because it takes longer.
"""
