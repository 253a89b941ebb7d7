"""Rows of a lake table that have been there long enough are removed, in commits of their own."""

import time

import structlog

from sluice.errors import ApplyError, StoreError
from sluice_spark.lake.failures import SparkGone
from sluice_spark.lake.merge import expire_text
from sluice_spark.lake.table import LakeTable

_TURNS = 10
"""For so many turns rows that expire stay; they may stay longer by one."""
SHORTEST_TURN_SECONDS, LONGEST_TURN_SECONDS = 60.0, 86400.0


_log = structlog.get_logger("sluice.apply")


def expire_now(lake: LakeTable, column: str, seconds: float) -> None:
    """What `expire` does; what cannot go now goes in a later turn. Raises SparkGone, UnsupportedChange."""
    try:
        with lake.seconds.phase("expire"):
            expire(lake, column, seconds, now=time.time())
    except SparkGone:
        raise
    except (ApplyError, StoreError) as error:
        _log.warning("rows that are old enough stay for now", error=str(error), hint=error.hint)


def expire(lake: LakeTable, column: str, seconds: float, *, now: float) -> None:
    """Removes the rows of `lake` whose time in `column` is more than `seconds` ago, once for each turn of time, in a
    commit whose marker is when the turn began, in microseconds: also after turns of another length it is later than
    those before. Raises UnsupportedChange, ApplyError.
    """
    length = min(max(seconds / _TURNS, SHORTEST_TURN_SECONDS), LONGEST_TURN_SECONDS)
    turn = int(now // length * length * 1_000_000)
    app_id = f"{lake.app_id}/expired"
    if (lake.marker(app_id) or 0) < turn:
        statement = expire_text(lake.expression, column, before_us=int((now - seconds) * 1_000_000))
        lake.execute(app_id, turn, statement=statement)
