"""The history of a server's timeline: where each earlier timeline was left for the next.

It never changes. It tells a promoted standby of the server that the manifest was written from, which has
everything up to the fork, from a server that went another way. (PostgreSQL: Streaming Replication
Protocol, TIMELINE_HISTORY; Continuous Archiving, Timelines.)
"""

from contextlib import closing

from psycopg import pq

from sluice import lsn
from sluice.contract.entries import Fork
from sluice.errors import SourceRefused, UsageError
from sluice.source.continuity import FIRST
from sluice.source.sessions import KnownSource, open_replication, raise_result

_NO_FILE = b"58P01"


def read_history(options: KnownSource, timeline: int) -> tuple[Fork, ...] | None:
    """The forks of `timeline`, oldest first; None when the server does not give its history: the role may not ask for
    it, or the file is not there. Only a replication connection may ask for one. Raises SourceUnavailable.
    """
    if timeline == FIRST:
        return ()
    try:
        with closing(open_replication(options)) as conn:
            result = conn.pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
            if result.status != pq.ExecStatus.TUPLES_OK:
                if result.error_field(pq.DiagnosticField.SQLSTATE) == _NO_FILE:
                    return None
                raise_result(result, doing="TIMELINE_HISTORY")
            if result.ntuples != 1:
                return None
            content = result.get_value(0, 1) or b""
    except SourceRefused:
        return None
    return parse_history(content)


def parse_history(content: bytes) -> tuple[Fork, ...] | None:
    """The forks in a history file; None for one that is damaged. A line has a timeline, the position at
    which it was left, and a reason. One that begins with # is a comment.
    """
    forks: list[Fork] = []
    for line in content.decode("utf-8", "replace").splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            fork = Fork(int(words[0]), lsn.parse(words[1]))
        except (ValueError, IndexError, UsageError):
            return None
        if forks and fork.timeline <= forks[-1].timeline:
            return None
        forks.append(fork)
    return tuple(forks)
