"""What is known of a server and of a replication slot, as plain values. Pure."""

from dataclasses import dataclass

from sluice.contract.entries import Fork, Opened


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session leads: to which server, on which timeline, and to which database of it."""

    system_identifier: str
    timeline: int
    database: str
    database_oid: int

    @classmethod
    def of(cls, seen: "Opened | ServerFacts | Place") -> "Place":
        return cls(seen.system_identifier, seen.timeline, seen.database, seen.database_oid)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Which server this is and how far its log has come. `wal_end_lsn` is the replayed position on
    a standby. `forks` is the history of `timeline`, oldest first, None where the server does not give
    it; `history_away` says why, where that may pass. `signals_ddl`: the database has the DDL signal.
    """

    system_identifier: str
    timeline: int
    database: str
    database_oid: int
    server_version: int
    wal_end_lsn: int
    wal_level: str
    in_recovery: bool
    encoding: str
    forks: tuple[Fork, ...] | None = ()
    history_away: str = ""
    signals_ddl: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """One row of pg_replication_slots; what a server version does not have is None, False or empty.

    `safe_wal_size` is None without a limit, `catalog_xmin_age` in transactions. `active_as` is the
    application_name of the session that uses the slot, None when nobody does and where it cannot be
    seen. `decoded` is whether the server has decoded transactions for the slot, as far as its
    statistics go back.
    """

    name: str
    plugin: str
    slot_type: str
    database: str
    temporary: bool
    active_pid: int | None
    restart_lsn: int | None
    confirmed_flush_lsn: int | None
    two_phase: bool
    failover: bool
    synced: bool
    wal_status: str
    invalidation_reason: str
    conflicting: bool
    safe_wal_size: int | None
    catalog_xmin_age: int | None
    active_as: str | None = None
    decoded: bool = False

    @property
    def is_being_made(self) -> bool:
        """Whether somebody waits for older transactions to end: it is of no use before, and lost is nothing."""
        return self.active_pid is not None and self.restart_lsn is not None and self.confirmed_flush_lsn is None

    @property
    def invalidated(self) -> str:
        """Why the slot can never be used again, empty when it can."""
        if self.invalidation_reason:
            return self.invalidation_reason
        # 16 calls every invalidated slot conflicting, but forgets the WAL position only of those
        # whose WAL is gone.
        if self.conflicting and self.restart_lsn is not None:
            return "conflict with recovery on a standby"
        has_position = self.confirmed_flush_lsn is not None or self.is_being_made
        return "wal_removed" if self.wal_status == "lost" or not has_position else ""


def foreign_user(slot: SlotFacts | None, application_name: str) -> str:
    """Who uses the slot, in words, when it is certainly not a session with our `application_name`;
    else empty. Pure.
    """
    if slot is None or slot.active_pid is None or slot.active_as is None:
        return ""
    # A pooler may add the client's address behind a space.
    if slot.active_as.partition(" ")[0] == application_name:
        return ""
    return f"process {slot.active_pid} (application_name {slot.active_as or 'not set'})"
