"""The boundary: the next LSN at which a Delta version of every live table is published.

Owns that the boundary is reached under any load. A table that has not passed it gets no window
across it. A table that has passed it continues at once, and its version at the boundary is kept.
The applier never waits for a moment without running windows. A busy table gives away one window per
boundary, cut short there, so boundaries lie apart. One that every live table began after makes way
for the next. So does one in front of a change of shape that only a look at the catalog showed: a boundary is
published once the manifest says that it was examined. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from sluice.contract import keys
from sluice.contract.applied import AppliedTable, Complete, CompletedTable
from sluice.contract.table_state import State
from sluice_spark.progress.ledger import Ledger

TIMES_TAKEN = 3
"""The next boundary is set this many times as long after the last as that took to be published. When
all workers are busy and a table waits long for its turn, one window in so many is cut short, and
what is left waits for another turn. Sooner when no table waits so long any more.
"""


@dataclass(slots=True)
class Boundary:
    """The next LSN at which a Delta version of every live table is published: the end of manifest
    entry `seq`.
    """

    seq: int = 0
    lsn: int = 0
    time_us: int = 0
    """When the last transaction in front of it was committed, at the latest."""
    reached_us: int = 0
    """When the last one was committed that the stream brought."""
    set_at: float = float("-inf")
    """On the loop's clock."""
    versions: dict[str, int] = field(default_factory=dict)
    """By table id, of tables that have passed."""
    markers: dict[str, int] = field(default_factory=dict)
    """What their Delta tables record at these versions, by table id."""
    is_passed: bool = False
    published: Complete | None = None

    def pass_by(self, tables: Mapping[str, AppliedTable], *, since_lsn: Mapping[str, int]) -> None:
        """Notes the versions of the tables that are at the boundary now. `since_lsn` has the LSN
        of each one's snapshot: none is there before it.
        """
        for key, table in tables.items():
            if (
                key not in self.versions
                and table.state == State.LIVE
                and table.through_seq >= self.seq >= table.committed_seq
                and since_lsn[key] <= self.lsn
            ):
                self.versions[key], self.markers[key] = table.delta_version, table.committed_seq

    def follow(self, rewritten: Iterable[tuple[str, int, int]]) -> None:
        """Takes versions, by table id, that have the rows of the one before them: its files may go."""
        for key, before, now in rewritten:
            if self.versions.get(key) == before:
                self.versions[key] = now

    def complete(self, tables: Mapping[str, AppliedTable], *, since_lsn: Mapping[str, int]) -> Complete | None:
        """What can be published, without number and time; None while a live table has not passed. A
        table that began later is left out as `snapshot`.
        """
        live, later = self._live_and_later(tables, since_lsn)
        if not self.seq or live.keys() - later - self.versions.keys() or not live.keys() - later:
            return None
        there = {_name(table) for table in live.values()}
        if len(there) != len(live):
            return None  # tables exchange their names: the manifest has the last of it in a moment
        # The name of a table that is gone may belong to another table now.
        gone = {key for key, table in tables.items() if table.state == State.DETACHED and _name(table) in there}
        left_out: dict[str, str] = {
            _name(table): State.SNAPSHOT if key in later else table.state
            for key, table in tables.items()
            if key in later or key not in live.keys() | gone
        }
        named = {key: table for key, table in live.items() if key not in later}
        versions = {_name(table): self.versions[key] for key, table in named.items()}
        paths = {_name(table): table.path for table in named.values()}
        targets = {_stated_name(table) for table in named.values() if table.target}
        stated = tuple(self._stated(key, table, targets) for key, table in named.items())
        return Complete(0, self.lsn, self.seq, "", versions, left_out, paths, stated, self.time_us, self.reached_us)

    def _stated(self, key: str, table: AppliedTable, targets: Collection[tuple[str, str]]) -> CompletedTable:
        """A table that is called as one of `targets` is quoted: readers tell them apart."""
        marker, names = f"{key}/{table.generation}", _stated_name(table)
        if names in targets and not table.target:
            names = (table.schema_name, _part(table.table_name))
        return CompletedTable(*names, table.path, self.versions[key], marker, self.markers[key])

    def is_missed(self, tables: Mapping[str, AppliedTable], *, since_lsn: Mapping[str, int]) -> bool:
        """Whether every live table began after it: there is nothing that could ever be published."""
        live, later = self._live_and_later(tables, since_lsn)
        return bool(live) and live.keys() == later

    def _live_and_later(
        self, tables: Mapping[str, AppliedTable], since_lsn: Mapping[str, int]
    ) -> tuple[dict[str, AppliedTable], set[str]]:
        """The live tables, and those of them that began later."""
        live = {key: table for key, table in tables.items() if table.state == State.LIVE}
        return live, {
            key
            for key in live
            if key not in self.versions and (since_lsn[key] > self.lsn or live[key].committed_seq > self.seq)
        }


class Boundaries:
    """One boundary after the other over the tables of `ledger`. The next one is set when the last was
    published, at least `apart_seconds` after the last was set, and longer while tables take long to
    get there.
    """

    def __init__(self, ledger: Ledger, *, apart_seconds: float) -> None:
        self._ledger = ledger
        self._apart_seconds = apart_seconds
        self._took_seconds = 0.0
        """From setting the last boundary to its publication."""
        self._boundary = Boundary()
        self._awaited: set[str] = set()
        """The tables that the boundary waited for when it was set."""

    @property
    def seq(self) -> int:
        """No table that has not passed this entry may get a window across it."""
        return self._boundary.seq

    def is_reached(self) -> bool:
        """Whether it is worth while to `publish`: the tables that the boundary waited for have passed."""
        boundary, ledger = self._boundary, self._ledger
        waits = boundary.published is None and boundary.seq > 0 and ledger.examined_lsn >= boundary.lsn
        return waits and self._awaited <= boundary.versions.keys()

    def turn(self, *, now: float, last: bool = False, quiet: bool = False) -> None:
        """Notes the tables that are at the boundary, before they continue; sets the next boundary
        when it is time, or the `last` one. While it is `quiet`, no table has anything to do, and a boundary costs
        none of them a window.
        """
        ledger = self._ledger
        self._boundary.follow(ledger.rewritten())
        moved = ledger.moved()
        if self._may_follow(now, last=last or quiet):
            self._boundary = Boundary(
                ledger.read_seq, ledger.read_lsn, ledger.read_time_us, ledger.reached_us, set_at=now
            )
            moved = set(ledger.tables)
        # All others have passed, or are where they were when they were asked last.
        moved -= self._boundary.versions.keys()
        if moved:
            rows = ledger.report(moved)
            self._boundary.pass_by(rows, since_lsn=self._snapshot_lsns(moved))
            if len(moved) == len(ledger.tables):
                self._awaited = {key for key, row in rows.items() if row.state == State.LIVE}

    def _may_follow(self, now: float, *, last: bool) -> bool:
        ledger, boundary = self._ledger, self._boundary
        return (
            (boundary.published is not None or not boundary.seq)
            and ledger.read_seq > boundary.seq
            and (last or self._is_time(now - boundary.set_at, now=now))
            and ledger.read_seq >= max((progress.committed_seq for progress in ledger.tables.values()), default=0)
        )

    def _is_time(self, passed: float, *, now: float) -> bool:
        """Whether the next boundary costs little after so many seconds. A backlog that is over says nothing about
        what it takes to get there.
        """
        if passed < self._apart_seconds:
            return False
        if passed >= TIMES_TAKEN * self._took_seconds:
            return True
        return passed >= TIMES_TAKEN * max(self._ledger.waiting(now=now).values(), default=0.0)

    def publish(self, rows: Mapping[str, AppliedTable], say: Callable[[Complete, float], None], *, now: float) -> None:
        """States the boundary, when every live table has passed it and the catalog was examined through it, and
        since when one of its versions may have been replaced. `rows` are all tables now.
        """
        since_lsn = self._snapshot_lsns(rows)
        complete = self._boundary.complete(rows, since_lsn=since_lsn)
        if complete is None:
            if self._boundary.is_missed(rows, since_lsn=since_lsn):
                self._boundary = Boundary()
            return
        versions, tables = self._boundary.versions, self._ledger.state.tables
        if not self._boundary.is_passed:
            self._boundary.is_passed, self._took_seconds = True, now - self._boundary.set_at
        if self._boundary.published is None and any(tables[key].schema_seq > self._boundary.seq for key in versions):
            # The source may have had the next shape, or what made the table begin again, by then.
            self._boundary = Boundary()
        elif self._ledger.examined_lsn >= self._boundary.lsn:
            newest = all(rows[key].delta_version == version for key, version in versions.items() if key in rows)
            say(complete, now if newest else self._boundary.set_at)
            self._boundary.published = complete

    def _snapshot_lsns(self, tables: Iterable[str]) -> dict[str, int]:
        return {table_id: self._ledger.tables[table_id].pending.snapshot_lsn for table_id in tables}


def _name(table: AppliedTable) -> str:
    """`schema.table`, and `schema.table/target` for a lake table with a name of its own. A part that holds a dot, a
    slash or a quote is quoted as in SQL, so that two tables never share a name.
    """
    return keys.target_title(_part(table.schema_name), _part(table.table_name), table.target)


def _stated_name(table: AppliedTable) -> tuple[str, str]:
    return table.schema_name, keys.target_key(table.table_name, table.target)


def _part(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if set(name) & {".", "/", '"'} else name
