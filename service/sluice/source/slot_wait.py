"""Waiting until nobody streams from the slot, which after a lost connection takes the server a
while to notice.

Invariant: a process that lives is never waited for longer than it needs to end, and is named.
(PostgreSQL: pg_replication_slots; pg_stat_replication; wal_sender_timeout.)
"""

from collections.abc import Callable
from dataclasses import dataclass

from sluice.backoff import Backoff, doubling
from sluice.errors import SlotBusy
from sluice.source.sessions import Connection, SourceOptions, translated

OWN_MARGIN_SECONDS = 30.0
"""Past wal_sender_timeout, at which the server ends the connection of a silent client: it looks only now
and then.
"""
NEVER_SECONDS = 60.0
"""In place of a wal_sender_timeout of 0, when nothing but TCP notices that a client is gone."""
ALIVE_SECONDS = 30.0
"""For a slot that a living process uses: long enough for one that is being replaced to end."""
LOOK_SECONDS = doubling(0.1, 2.0)
"""Pauses between looks at a slot that is in use; the last one repeats."""
ANSWERS_SECONDS = 15.0
"""A client of ours that lives reports to the server every 10 s at least."""


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who uses the slot. `replied_at` is None where this role may not see it, and what it has `confirmed` is then
    the only sign of life; `timeout_s` is 0 when the server never ends the connection of a silent client.
    """

    pid: int
    application_name: str
    replied_at: float | None
    timeout_s: float
    confirmed: str | None


def wait_until_free(
    conn: Connection,
    options: SourceOptions,
    *,
    bound_s: float | None = None,
    sleep: Callable[[float], None] | None = None,
    said: Callable[[str], None] = lambda _: None,
) -> None:
    """Returns when nobody streams from the slot, which after a lost connection takes the server a
    while to notice.

    A connection of this pipeline may be one that we lost: it is waited for until the server has
    released it, which takes wal_sender_timeout. One of somebody else, or of ours and still
    answering, belongs to a process that runs. Raises SlotBusy naming the process when it lasts
    longer than that, or than `bound_s`. Before each pause `said` hears who uses it.
    """
    sleep = sleep or options.cancellation.sleep
    waited, backoff = 0.0, Backoff(LOOK_SECONDS)
    before: _Holder | None = None
    answered: float | None = None
    while (holder := _holder(conn, options.slot)) is not None:
        if before is not None and before != holder:
            answered = waited
        before = holder
        ours_and_lost = holder.application_name == options.application_name and (
            answered is None or waited - answered > ANSWERS_SECONDS
        )
        patience = OWN_MARGIN_SECONDS + (holder.timeout_s or NEVER_SECONDS) if ours_and_lost else ALIVE_SECONDS
        use = f"in use by process {holder.pid} (application_name {holder.application_name or 'not set'})"
        if waited >= (patience if bound_s is None else bound_s):
            raise SlotBusy(
                f"slot {options.slot} is still {use}, after {waited:.0f} s",
                hint="stop the other process; if it has already ended, the server frees the slot after "
                "wal_sender_timeout, or when an administrator runs "
                f"SELECT pg_terminate_backend({holder.pid})",
            )
        said(f"slot {options.slot}, {use}")
        pause = backoff.next()
        sleep(pause)
        waited += pause


def _holder(conn: Connection, slot: str) -> _Holder | None:
    command = """
        SELECT s.active_pid, COALESCE(a.application_name, ''), EXTRACT(epoch FROM r.reply_time)::float8,
               pg_catalog.date_part('epoch', pg_catalog.current_setting('wal_sender_timeout')::pg_catalog.interval),
               s.confirmed_flush_lsn::text
        FROM pg_catalog.pg_replication_slots s
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
        LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid
        WHERE s.slot_name = %s AND s.active"""
    with translated("reading who uses the replication slot"):
        row = conn.execute(command.encode(), (slot,)).fetchone()
    return _Holder(*row) if row is not None else None
