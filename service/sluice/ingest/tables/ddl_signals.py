"""What DDL signals mean: through where the catalog is known to be as a look found it, and which tables are in
doubt because of what two looks do not show.

Invariant: nothing is called examined at or behind a transaction that said DDL ran before a look that sees that
transaction has ended; and without a signal only while the server is known to send one for all DDL, and no
carried table can change otherwise. A signal never says that something is as it was: a forged one costs a
look or a snapshot. (PostgreSQL: Event Triggers.)
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import structlog

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.resyncs import Cause
from sluice.ingest.assemble.assembly import (
    Assembly,
    Discarded,
    MessageRun,
    PreparedBody,
    PreparedCommitted,
    PreparedRolledBack,
    Published,
)
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.values import TableState
from sluice.source.ddl_signal import Seen
from sluice.tables.catalog_diff import Unseen
from sluice.tables.policies import Policies, TablePolicy

Left = frozenset[tuple[str | int, ...]]
"""What commands left, by kind: see the function of the event triggers."""

MOST_LEFT = 100_000
"""Of one transaction. What more of them said puts every table in doubt."""
_ANYTHING: Left = frozenset({("anything",)})
_FLOODED = Unseen(Cause.REWRITE, "more DDL ran in one transaction than could be followed")
_LONGEST = 64 << 20
"""Bytes of a message: those of the event triggers are far shorter."""
MOST_COLUMNS = 1600
"""Of one table, also counting those that were dropped: the server's limit."""
HOLD_SECONDS = 10.0
"""For how long rows wait for looks that signals cause, one after the other. One takes a second where it succeeds."""


@dataclass(frozen=True, slots=True)
class Signal:
    """DDL ran in transaction `xid`, whose commit record ends at `end_lsn`."""

    end_lsn: int
    xid: int
    left: Left = frozenset()


class SignalReader:
    """The signals of one connection, for its decoder thread: each comes with the end of its transaction. `prepared`
    are those that earlier connections of the process read.
    """

    def __init__(self, prepared: dict[str, Left | None] | None = None) -> None:
        self._open: dict[int, Left] = {}
        self._prepared = prepared if prepared is not None else {}

    def take(self, assembly: Assembly) -> list[Signal]:
        """Those of transactions that have committed in this batch."""
        ended: dict[tuple[int, int], Left] = {}

        def end(lsn: int, xid: int, left: Left | None) -> None:
            if left is not None:
                ended[lsn, xid] = _joined(ended.get((lsn, xid), frozenset()), left)

        for run in assembly.signals:
            if run.lsn is not None:
                end(run.lsn, run.xid, _left(run))
            elif run.body is not None:
                self._open[run.body] = _joined(self._open.get(run.body, frozenset()), _left(run))
        for ending in assembly.endings:
            match ending:
                case Published():
                    end(ending.end_lsn, ending.xid, self._open.pop(ending.body, None))
                case Discarded():
                    self._open.pop(ending.body, None)
                case PreparedBody():
                    self._prepared[ending.fact.gid] = self._open.pop(ending.body, None)
                case PreparedCommitted():
                    # Of one that an earlier process read nobody knows: a look is needed.
                    end(ending.end_lsn, ending.xid, self._prepared.pop(ending.gid, frozenset()))
                case PreparedRolledBack():
                    self._prepared.pop(ending.gid, None)
        return [Signal(lsn, xid, left) for (lsn, xid), left in sorted(ended.items(), key=lambda item: item[0])]


def _joined(before: Left, left: Left) -> Left:
    return before | left if len(before) + len(left) <= MOST_LEFT and before != _ANYTHING else _ANYTHING


def _left(run: MessageRun) -> Left:
    """Nothing, where the message is not as the event triggers make it."""
    if len(run.message.content) > _LONGEST:
        return _ANYTHING
    try:
        said = json.loads(bytes(run.message.content)).get("left") or ()
        return frozenset(tuple(one) for one in said)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return frozenset()


@dataclass(frozen=True, slots=True)
class Due:
    """What one look judges: `signals` that it sees, and `through_lsn`, behind which others may wait."""

    signals: tuple[Signal, ...]
    through_lsn: int


class DdlSignals:
    """For one process. Thread-safe: the decoder and the catalog watch share it. `examined` hears through where the
    catalog is known to be as it was found, `examined_lsn` says it.
    """

    def __init__(self, *, examined: Callable[[int], None], examined_lsn: Callable[[], int]) -> None:
        self._examined = examined
        self._examined_lsn = examined_lsn
        self.prepared: dict[str, Left | None] = {}
        """See SignalReader."""
        self._lock = threading.Lock()
        self._waiting: dict[int, Signal] = {}
        self._columns: dict[int, dict[int, tuple[int, int]]] = {}
        """By oid and attnum, the LSNs of the first and of the last signal of a command that wrote the column."""
        self._unjudged: set[int] = set()
        """The LSNs of signals that no look has judged; there have been some since `_unjudged_since`."""
        self._unjudged_since = 0.0
        self._decoded_lsn = 0
        self._sent_since: int | None = None
        """From where on the stream has had the signals that there were, None while it has none."""
        self._version, self._lacks = "", ""
        self._open: frozenset[str] | None = None
        self._complete_since: int | None = None
        self._unsaid = ""
        self._said: str | None = None
        self._logger = structlog.get_logger("tables")

    @classmethod
    def of(cls, log: OrderedLog) -> "DdlSignals":
        """Those of the process that writes `log`."""
        return cls(examined=log.examined, examined_lsn=lambda: log.examined_lsn)

    def begin(self, start_lsn: int, *, sent: bool) -> None:
        """A connection begins at `start_lsn`; with `sent` the server sends messages."""
        with self._lock:
            self._decoded_lsn = start_lsn  # the server sends again what is after it
            if not sent:
                self._sent_since = None
            elif self._sent_since is None:
                # The server sends again what an earlier connection read without them.
                self._sent_since = self._decoded_lsn = start_lsn

    def heard(self, signals: Iterable[Signal]) -> None:
        """Transactions whose rows come next said `signals`."""
        with self._lock:
            for signal in signals:
                self._unjudged_since = self._unjudged_since if self._unjudged else time.monotonic()
                self._unjudged.add(signal.end_lsn)
                self._waiting.setdefault(signal.end_lsn, signal)
                for one in signal.left:
                    match one:
                        case ("column", int(oid), int(attnum), *_) if 0 < attnum <= MOST_COLUMNS:
                            known, lsn = self._columns.setdefault(oid, {}), signal.end_lsn
                            first, last = known.get(attnum, (lsn, lsn))
                            known[attnum] = min(first, lsn), max(last, lsn)

    def columns_said(self, oid: int, before_lsn: int) -> tuple[tuple[int, int], ...] | None:
        """Columns of the table that commands wrote whose transactions ended at or before `before_lsn`, by attnum, with
        the end of the last transaction that wrote each. None where the server does not say it.
        """
        with self._lock:
            if self._lacks or not self._version or self._sent_since is None:
                return None
            known = self._columns.get(oid, {}).items()
            return tuple((attnum, last) for attnum, (first, last) in known if first <= before_lsn)

    def decoded(self, through_lsn: int) -> None:
        """Every transaction that ended at or before `through_lsn` was read, with all that it said."""
        with self._lock:
            self._decoded_lsn = max(self._decoded_lsn, through_lsn)
            if not self._why_not():
                self._examined(min([self._decoded_lsn, *(lsn - 1 for lsn in self._waiting)]))

    @property
    def waiting(self) -> bool:
        """Whether a signal waits for a look."""
        return bool(self._waiting)

    @property
    def holding(self) -> bool:
        """Whether nothing more is to be published for now: a signal whose look is still due would be forgotten with
        this process; the server sends it again with what is not published.
        """
        with self._lock:
            return bool(self._unjudged) and time.monotonic() - self._unjudged_since < HOLD_SECONDS

    @property
    def why_not(self) -> str:
        """Why completeness needs looks at the catalog although nothing is signalled, empty when it does not."""
        with self._lock:
            return self._why_not()

    def due(self, unseen_among: Callable[[list[int]], set[int]]) -> Due:
        """What a look that begins now judges. `unseen_among` names those transactions that nobody sees yet."""
        with self._lock:
            waiting, decoded_lsn = tuple(self._waiting.values()), self._decoded_lsn
        unseen = unseen_among([signal.xid for signal in waiting]) if waiting else set()
        rest = [signal.end_lsn - 1 for signal in waiting if signal.xid in unseen]
        return Due(tuple(signal for signal in waiting if signal.xid not in unseen), min([decoded_lsn, *rest]))

    def bounded(self, due: Due, lsn: int) -> int:
        """Through where a look has examined the catalog that would have through `lsn`, had nobody signalled."""
        with self._lock:
            if not self._why_not():
                lsn = min(due.through_lsn, self._decoded_lsn)
            judged = {signal.end_lsn for signal in due.signals}
            return min([lsn, *(waits - 1 for waits in self._waiting if waits not in judged)])

    def judged(self, due: Due, *, examined_lsn: int) -> None:
        """The look is over, and the catalog examined through `examined_lsn`: what it judged waits no longer."""
        with self._lock:
            for signal in due.signals:
                self._unjudged.discard(signal.end_lsn)
                if signal.end_lsn <= examined_lsn:
                    self._waiting.pop(signal.end_lsn, None)
            said = self._why_not()
        if said != self._said and self._version:
            self._said = said
            what = "the catalog is read in addition to the DDL signal" if said else "the DDL signal is relied upon"
            self._logger.info(what, reason=said or None)

    @property
    def settling(self) -> bool:
        """Whether transactions that were open when the signal was first seen may be still."""
        return self._complete_since is None

    def probed(self, seen: Seen, lsn: int) -> None:
        """What the server says of the signal; afterwards it was at `lsn`. Only a transaction that began when the
        signal was there is known to say what it does.
        """
        with self._lock:
            self._lacks = seen.lacks
            if seen.lacks or seen.version != self._version:
                self._version, self._open, self._complete_since = seen.version, None, None
            if seen.lacks:
                return
            if self._open is None:
                self._open = seen.open
            elif self._complete_since is None and seen.open is not None and not self._open & seen.open:
                self._complete_since = lsn

    def looked(self, carried: Iterable[TableFacts]) -> None:
        """Which tables are carried, by the newest look."""
        carried = tuple(carried)
        parted = next((one.qualified_name for one in carried if one.relkind == "p" or one.is_partition), "")
        with self._lock:
            self._columns = {one.oid: self._columns[one.oid] for one in carried if one.oid in self._columns}
            self._unsaid = (
                f"{parted} has or is a partition: no event trigger runs for a TRUNCATE there, or early "
                "enough for DETACH CONCURRENTLY"
                if parted
                else ""
            )

    def _why_not(self) -> str:
        if self._lacks or not self._version:
            return self._lacks or "it was not looked for yet"
        if self._sent_since is None:
            return "this connection began without its messages"
        if self._complete_since is None:
            return "transactions that are older than it are open"
        if self._examined_lsn() < max(self._complete_since, self._sent_since):
            return "the catalog was not examined since"
        return self._unsaid


def doubt(
    left: Collection[tuple[str | int, ...]],
    facts: TableFacts,
    policy: TablePolicy,
    *,
    entries: Callable[[], tuple[int, set[int]]],
) -> Unseen | None:
    """Why the table may have been otherwise for a while although two looks do not show it: by what commands `left`,
    which `facts` do not have any more. `entries` says which publication it is, and what it has now.
    """
    leaves = {leaf.oid: leaf for leaf in facts.children}
    types = {column.attnum: (column.type_oid, column.typmod) for column in facts.columns}
    labels = {
        int(detail.key.split(" ")[2]): _hash(detail.spelling)
        for detail in facts.type_details
        if detail.key.startswith("label ") and detail.key.count(" ") == 2
    }
    for one in left:
        match one:
            case ("partition", int(oid), *above) if facts.oid in above:
                if oid not in leaves:
                    return Unseen(Cause.PARTITION, "a partition came and went: rows that were sent as its own are gone")
            case ("table", int(oid), str(persistence), str(identity)) if oid == facts.oid or oid in leaves:
                if persistence != "p":
                    what = "it was unlogged for a moment: what was written then is not in the stream"
                    return Unseen(Cause.REWRITE, what)
                if oid in leaves and identity != leaves[oid].replica_identity:
                    what = "a partition had another replica identity for a moment: old rows may lack values"
                    return Unseen(Cause.PARTITION, what)
            case ("column", int(oid), int(attnum), int(type_oid), int(typmod)) if oid == facts.oid:
                if policy.casts_only and types.get(attnum, (type_oid, typmod)) != (type_oid, typmod):
                    what = (
                        "a column changed its type more than once before the catalog was read: values may "
                        "have been truncated"
                    )
                    return Unseen(Cause.REWRITE, what)
            case ("label", int(oid), str(spelled)) if labels.get(oid, spelled) != spelled:
                what = "a label of an enum had another name for a moment: rows from then read otherwise"
                return Unseen(Cause.TYPE, what)
            case ("entry", int(publication), int(oid)) if facts.removals >= 0:
                ours, now = entries()
                if publication == ours and oid not in now:
                    what = "an entry of the publication came and went: some changes may not have been sent"
                    return Unseen(Cause.PUBLICATION, what)
    return None


def _hash(label: str) -> str:
    return hashlib.sha256(label.encode()).hexdigest()


def doubts(
    signals: Iterable[Signal],
    published: Mapping[int, TableFacts],
    carried: Iterable[TableState],
    policies: Policies,
    *,
    entries: Callable[[], tuple[int, set[int]]],
) -> Iterator[tuple[TableState, Unseen]]:
    """Those of the `carried` tables that are in doubt: by what was said behind their snapshots."""
    for state in carried:
        facts = published.get(int(state.table_id))
        left = frozenset[tuple[str | int, ...]]().union(*(one.left for one in signals if one.end_lsn > state.lsn))
        if facts is None or not left:
            continue
        policy = policies.of(state.schema_name, state.table_name)
        found = _FLOODED if left >= _ANYTHING else doubt(left, facts, policy, entries=entries)
        if found is not None:
            yield state, found
