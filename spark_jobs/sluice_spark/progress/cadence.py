"""When a table gets its next window, and which table comes first. Pure arithmetic on the loop's clock.

A table's freshness target is the longest time that a change of it waits for its window once the
applier could read it. A table that has rested that long is served at once, because waiting would
save no window. So a table gets at most one window in the time of its target, unless enough changes
wait to be worth one, or what waits is large: splitting that costs nothing, for the cost of a small
window does not depend on its size.
"""

from sluice_spark.read.window import PendingChanges

SMALL_BYTES = 32 << 20
"""Below it the cost of a window does not depend on its size."""
WORTH_SECONDS = 0.0001
"""What a window may take for each change that waits, to come before the target: CPU is money."""
SHORTEST_SECONDS = 0.001
"""A target of 0 asks for every change at once. What is overdue is compared by targets."""


def due_at(
    pending: PendingChanges, *, begun_at: float, window_seconds: float, freshness_seconds: float, max_bytes: int
) -> float | None:
    """When the next window of a table is due, None while nothing waits. `begun_at` is when its last window began,
    `window_seconds` how long the last one took that was small, `max_bytes` what a window takes at most.
    """
    since = pending.since
    if since is not None and pending.waiting_rows * WORTH_SECONDS >= window_seconds > 0:
        return since
    if since is None or not pending.has_snapshot or pending.waiting_bytes >= min(SMALL_BYTES, max_bytes):
        return since
    return max(since, min(since, begun_at) + freshness_seconds)


def overdue(due: float, *, begun_at: float, freshness_seconds: float, now: float) -> float:
    """How many targets have passed since a table was due, or since it was last served: a table with
    a long backlog is due all the time, and takes turns with the others.
    """
    return (now - max(due, begun_at)) / max(freshness_seconds, SHORTEST_SECONDS)
