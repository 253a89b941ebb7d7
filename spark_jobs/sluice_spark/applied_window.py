"""What became of one window of one table. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice_spark.lake.commit_way import CommitWay
from sluice_spark.lake.examined_version import ExaminedVersion


@dataclass(frozen=True, slots=True)
class Applied:
    """What a window did. `place` is where the lake table stands since then, `through_seq` the last
    entry of which nothing is left to do.

    `rows` counts changes, `commit_time_us` is the newest commit time among them (0: none). `ops`
    are the rows by what they did, `seconds` the time by phase, both in the words of the metrics.

    `way` says how changes were committed, `fresh_looks` how often the commit met another one. `files`
    counts the lake table's files, None when that is not known. `not_in_parts` says why a part of a snapshot is not
    beside the lake table, and none will be; empty when it is. `unarranged` says why the lake table does not lie as it
    is configured (empty: it does; None: not asked).
    """

    place: ExaminedVersion
    through_seq: int
    rows: int = 0
    schema_version: int = 0
    commit_time_us: int = 0
    committed: bool = True
    ops: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    way: CommitWay = field(default_factory=CommitWay)
    fresh_looks: int = 0
    files: int | None = None
    not_in_parts: str = ""
    unarranged: str | None = None
