"""Whether a standby is still on the timeline that the stream began on.

A standby that is promoted, or whose primary is, goes on sending over the connections that there are: nothing
in the stream says that its log has left the timeline. Invariant: what was received before `require` was
called, and returned, is of the timeline that was proven. (PostgreSQL: Streaming Replication Protocol,
IDENTIFY_SYSTEM; Logical Decoding Concepts, Logical replication slots on standbys.)
"""

import threading

from sluice.errors import SourceMoved, SourceUnavailable
from sluice.source.sessions import Connection, SourceOptions, open_replication
from sluice.source.start import identity_of


class TimelineGuard:
    """Asks over a walsender of its own, which it opens when it is first needed. Of a server that cannot
    leave its timeline while it runs (`may_leave`), a primary, it asks nothing. Thread-safe.
    """

    def __init__(self, options: SourceOptions, *, system_identifier: str, timeline: int, may_leave: bool) -> None:
        self._may_leave = may_leave
        self._options = options
        self._system_identifier = system_identifier
        self._timeline = timeline
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def require(self) -> None:
        """Raises SourceMoved when the server has left the timeline, SourceError when it does not say."""
        if not self._may_leave:
            return
        with self._lock:
            if self._connection is None:
                self._connection = open_replication(self._options)
            try:
                now = identity_of(self._connection)
            except BaseException:
                self._close()
                raise
        if now.system_identifier != self._system_identifier:
            raise SourceUnavailable("another server answers than the one that streams")
        if now.timeline != self._timeline:
            raise SourceMoved(
                f"the standby that is read went from timeline {self._timeline} to {now.timeline}",
                hint="start it again: it goes on there",
            )

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
