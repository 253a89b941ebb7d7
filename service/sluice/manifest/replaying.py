"""Where a replay ends, and which tables the spool can make as of there.

Invariant: a table is offered only when its lake table at that position follows from what the manifest has, exactly: it
was live, its snapshot is complete and no younger, nothing of it was lost, and the catalog was looked at since, which
found no change of it that the stream does not show. Whatever is not so is refused by name. Where a time was asked for,
none of its rows was read later: what was committed until then no entry tells. Reads only.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain

from sluice.contract.entries import Changes, Entry, Opened, Repair, Snapshot
from sluice.contract.table_state import State
from sluice.errors import UsageError
from sluice.lsn import show
from sluice.manifest.ending import Ending
from sluice.manifest.reader import load_state, read_entries, stored
from sluice.manifest.state import reduce
from sluice.manifest.values import PipelineState, TableState
from sluice.store.base import ObjectStore

Moment = int | datetime | None
"""An LSN, a time, or the newest position that can be stated."""
MOST_STATES = 64
"""Of one position that are kept, while the catalog shows changes and nothing else happens."""
_LATEST = "`--to latest` names the newest position that can be replayed"


@dataclass(slots=True)
class Found:
    """A position: `states` are those of the manifest that stand there, in order, each with its ending. The newest
    transaction was committed at `time_us` (unix microseconds; 0 when that is not known), and the catalog had been
    looked at through `examined_lsn`. `doubts` says, by table id, what a look found later. `read_at` has by table id and
    generation when rows were read (ISO 8601 UTC) that were read after the time that was asked for.
    """

    states: list[tuple[Ending, PipelineState]]
    time_us: int
    examined_lsn: int
    doubts: dict[str, str] = field(default_factory=dict)
    read_at: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def lsn(self) -> int:
        return self.states[-1][0].lsn


def find(store: ObjectStore, to: Moment) -> Found:
    """The position behind the last transaction that ended at the LSN `to` or before it; or in front of the first one
    that was committed after the time `to`. Raises UsageError when the spool does not say what was there, or not yet,
    ManifestCorrupt, FormatTooNew, StoreError.
    """
    wanted = load_state(store).examined_lsn if to is None else to
    begin = stored(store, wanted=lambda state: isinstance(wanted, int) and state.through_lsn <= wanted)
    entries = read_entries(store, after_seq=begin.seq, previous_sha256=begin.previous_sha256 or None)
    found, passed = _through(begin, entries, wanted)
    last = found.states[-1][1]
    if last.seq == begin.seq and (not begin.seq or not isinstance(wanted, int) or begin.through_lsn > wanted):
        first_lsn = begin.through_lsn if passed is None or begin.seq else passed.through_lsn
        raise UsageError(
            f"the spool begins at {show(first_lsn)}, after the position that you asked for",
            hint="earlier changes were applied and pruned; spool.retention decides how long they stay",
        )
    if passed is None and last.through_lsn != wanted:
        raise UsageError(
            f"the spool ends at {show(last.through_lsn)}, and has nothing after the position that you asked for",
            hint=f"another transaction may still belong before that position; {_LATEST}",
        )
    if found.examined_lsn < found.lsn:
        _look_on(found, passed, entries)
    return found


def choose(found: Found, names: Iterable[str]) -> tuple[Ending, PipelineState, list[TableState]]:
    """The tables called `names` (schema.table), or all that the pipeline carried there, and as of which entry. Raises
    UsageError, which says of each that cannot be made why.
    """
    given = list(dict.fromkeys(names))
    for ending, state in found.states:
        known = {
            table.source_name: table
            for table in sorted(state.tables.values(), key=lambda table: table.generation_seq)
            if table.state is not State.DETACHED
        }
        wanted = given or sorted(known)
        refused = {name: why for name in wanted if (why := _refused(found, known.get(name)))}
        if wanted and not refused:
            return ending, state, [known[name] for name in wanted]
    said = "; ".join(f"{name} {why}" for name, why in refused.items()) or "a table, for the pipeline has none there"
    raise UsageError(
        f"as of {show(found.lsn)}, the spool cannot make {said}",
        hint="nothing was written; choose another position, or name the tables to create",
    )


def _refused(found: Found, table: TableState | None) -> str:
    """Why the table cannot be made, empty when it can."""
    if table is None:
        return "which is no table of the pipeline there"
    if table.paused is not None and table.state.is_followed:
        return "which is paused there"
    snapshot = table.snapshot
    if table.state.is_followed and (snapshot is None or not snapshot.final or not table.schemas):
        return "whose snapshot is not complete there"
    if table.state is State.PENDING:
        return f"which is pending there: its columns changed, and it is certain through {show(table.held_lsn)} only"
    if table.state is not State.LIVE:
        return f"which is {table.state} there"
    if snapshot is not None and snapshot.snapshot_lsn > found.lsn:
        return f"whose snapshot is as of {show(snapshot.snapshot_lsn)}"
    read_at = found.read_at.get((table.table_id, table.generation))
    if read_at is not None:
        return f"whose rows were read at {read_at}, after that time"
    doubt = found.doubts.get(table.table_id)
    return f"because {doubt}" if doubt else ""


def _through(
    begin: PipelineState, entries: Iterator[tuple[Entry, str]], wanted: int | datetime
) -> tuple[Found, Entry | None]:
    """What there is through `wanted`, and the first entry that is not part of it, or not as a whole."""
    state, time_us, states = begin, 0, [begin]
    read_at: dict[tuple[str, int], str] = {}
    passed: Entry | None = None
    for entry, sha256 in entries:
        count = _commits_through(entry, wanted)
        if count is None:
            before, state, time_us = state, reduce(state, entry, sha256), entry.newest_commit_us or time_us
            if (read := _read_later(entry, wanted)) is not None:
                read_at[read] = entry.written_at
            if before.through_lsn < state.through_lsn or before.examined_lsn < state.through_lsn:
                states = [state]
            elif entry.tables and len(states) < MOST_STATES:
                # It may speak of a later moment, and it may be what completes a table.
                states.append(state)
            else:
                states[-1] = state
            continue
        if isinstance(entry.body, Opened) and entry.body.lost is not None and entry.from_lsn != wanted:
            raise UsageError(
                f"changes between {show(entry.from_lsn)} and {show(entry.through_lsn)} were lost with the slot, and "
                "the position that you asked for lies between them",
                hint="choose one of these two, or a position that is not between them",
            )
        if count:
            assert isinstance(entry.body, Changes)
            ending = Ending(entry.seq, entry.body.commits.end_lsn[count - 1])
            time_us = max(entry.body.commits.commit_time_us[:count])
            at_end = ending.state(state, entry, sha256)
            return Found([(ending, at_end)], time_us, state.examined_lsn, read_at=read_at), entry
        passed = entry
        break
    found = [(Ending(one.seq, one.through_lsn), one) for one in states]
    return Found(found, time_us, states[0].examined_lsn, read_at=read_at), passed


def _read_later(entry: Entry, wanted: int | datetime) -> tuple[str, int] | None:
    """The table and the generation whose rows the entry has of a later time than is wanted. What a repair reads again
    is in the stream, but for what was lost with the slot.
    """
    body = entry.body
    if isinstance(wanted, int) or not (isinstance(body, Snapshot) or (isinstance(body, Repair) and body.gap_seq)):
        return None
    if body.table_id == "0":  # that of logical messages, which begins without rows
        return None
    return (body.table_id, body.generation) if entry.committed_by_us > _micros(wanted) else None


def _commits_through(entry: Entry, wanted: int | datetime) -> int | None:
    """How many transactions of `entry` belong to it; None for the whole entry."""
    commits = entry.body.commits if isinstance(entry.body, Changes) else None
    if isinstance(wanted, int):
        if entry.through_lsn <= wanted:
            return None
        return bisect_right(commits.end_lsn, wanted) if commits is not None else 0
    latest = _micros(wanted)
    times = commits.commit_time_us if commits is not None else ()
    return next((position for position, time_us in enumerate(times) if time_us > latest), None)


def _micros(moment: datetime) -> int:
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds


def _look_on(found: Found, passed: Entry | None, entries: Iterator[tuple[Entry, str]]) -> None:
    """Through the first entry that says that the catalog was looked at since. Raises UsageError when there is none."""
    ending, examined_lsn = found.states[-1][0], found.examined_lsn
    for entry in chain([passed] if passed is not None else [], (entry for entry, _ in entries)):
        examined_lsn = max(examined_lsn, entry.examined_lsn)
        # What the last entry says of a table is in its state, also where it holds behind the position.
        if examined_lsn >= ending.lsn and entry.seq > ending.seq:
            return
        for table in entry.tables:
            changes = table.schema is not None or table.state not in (None, State.LIVE)
            if changes and (entry.seq > ending.seq or table.lsn > ending.lsn):
                found.doubts[table.table_id] = (
                    f"entry {entry.seq} has a change of it that may be older than this position"
                )
        if examined_lsn >= ending.lsn:
            return
    raise UsageError(
        f"ingest has examined the catalog only through {show(examined_lsn)}, so it is not certain what the tables "
        f"held at {show(ending.lsn)}",
        hint=f"try again when ingest has continued; {_LATEST}",
    )
