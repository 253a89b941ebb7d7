"""Side queries for metrics: the server's position, the slot, what the server's decoder did for it,
how much WAL it may keep, since when nobody uses it.

Invariant: short queries on a session of its own. Needs no object store, so that the slot can be
watched while the store is away and WAL piles up. Must not decide anything. (PostgreSQL:
pg_stat_replication_slots; max_slot_wal_keep_size; pg_replication_slots.inactive_since)
"""

from dataclasses import dataclass

from sluice.source.facts import ServerFacts, SlotFacts
from sluice.source.lazy_session import LazySession
from sluice.source.sessions import Connection, SourceOptions, translated
from sluice.source.slot_facts import server_facts, slot_facts

_MEBI = 1024**2
_QUERY = b"""
    SELECT (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'),
           (SELECT EXTRACT(epoch FROM (pg_catalog.to_jsonb(r) ->> 'inactive_since')::timestamptz)::float8
            FROM pg_catalog.pg_replication_slots r WHERE r.slot_name = %(slot)s),
           s.spill_bytes, s.spill_txns, s.stream_bytes, s.stream_txns, s.total_bytes, s.total_txns
    FROM (SELECT 1) AS one LEFT JOIN pg_catalog.pg_stat_replication_slots s ON s.slot_name = %(slot)s"""


@dataclass(frozen=True, slots=True)
class DecoderTotals:
    """What the server has counted for the slot since its statistics were last reset; every number
    may fall back to 0.
    """

    spill_bytes: int
    spill_transactions: int
    streamed_bytes: int
    streamed_transactions: int
    decoded_bytes: int
    decoded_transactions: int


@dataclass(frozen=True, slots=True)
class SlotProbeFacts:
    """One look. `slot` is None when there is none. `keep_limit_bytes` is None without a limit,
    `inactive_since` (unix seconds) while the slot is in use and before PostgreSQL 17, `decoder`
    without a slot.
    """

    server: ServerFacts
    slot: SlotFacts | None
    keep_limit_bytes: int | None
    inactive_since: float | None
    decoder: DecoderTotals | None


class SlotProbe:
    """Asks about one slot. For one thread."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._before: tuple[Connection, ServerFacts] | None = None
        """The last look, and the connection it was made over."""
        self._session = LazySession(options)

    def ask(self) -> SlotProbeFacts:
        """Raises SourceError; the next call opens another session."""
        return self._session.ask(self._read)

    def close(self) -> None:
        self._session.close()

    def _read(self, connection: Connection) -> SlotProbeFacts:
        before = self._before[1] if self._before is not None and self._before[0] is connection else None
        server = server_facts(connection, self._options, before=before)
        self._before = connection, server
        slot = slot_facts(connection, self._options.slot)
        with translated("reading the slot's statistics"):
            row = connection.execute(_QUERY, {"slot": self._options.slot}).fetchone()
        assert row is not None
        keep_megabytes, inactive_since, *totals = row
        return SlotProbeFacts(
            server=server,
            slot=slot,
            keep_limit_bytes=keep_megabytes * _MEBI if keep_megabytes is not None and keep_megabytes >= 0 else None,
            inactive_since=inactive_since,
            decoder=DecoderTotals(*totals) if totals[0] is not None else None,
        )
