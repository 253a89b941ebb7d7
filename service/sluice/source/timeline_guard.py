"""Whether a standby is still on the timeline that the stream began on.

A standby that is promoted, or whose primary is, goes on sending over the connections that there are: nothing
in the stream says that its log has left the timeline. Invariant: what was received before `require` was
called, and returned, is of the timeline that was proven. (PostgreSQL: Streaming Replication Protocol,
IDENTIFY_SYSTEM; Logical Decoding Concepts, Logical replication slots on standbys.)
"""

import threading

from sluice.errors import SourceMoved
from sluice.source.sessions import Connection, KnownSource, open_replication
from sluice.source.start_replication import identity_of


class TimelineGuard:
    """Asks over a walsender of its own, which it opens when it is first needed. Of a server that cannot
    leave its timeline while it runs (`may_leave`), a primary, it asks nothing. Thread-safe.
    """

    def __init__(self, options: KnownSource, *, may_leave: bool) -> None:
        self._may_leave = may_leave
        self._options = options
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def require(self) -> None:
        """Raises SourceMoved when the server has left the timeline, SourceError when it does not say,
        SlotLost when it is another server.
        """
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
        if now.timeline != self._options.place.timeline:
            raise SourceMoved(
                f"the standby that is read went from timeline {self._options.place.timeline} to {now.timeline}",
                hint="start it again: it continues there",
            )

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
