"""What one look at the catalog means for a table: it joins, leaves, is lost, begins again, or has another shape.
Pure.

Invariant: what the stream does not say is never taken for what it says. A shape that no row announces is followed
behind every row of an older one; what may have changed rows without an event turns the table stale, by name.
"""

from collections.abc import Iterable
from functools import partial

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.reasons import UNSELECTED, Reason, ReasonCode
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.lsn import show
from sluice.manifest.values import TableState
from sluice.tables.catalog_diff import Unseen, attributes_seen, compare, fingerprint
from sluice.tables.column_changes import CannotFollow, reshape, step
from sluice.tables.events import CatalogSeen
from sluice.tables.generations import Generations
from sluice.tables.lake_paths import moves
from sluice.tables.policies import TablePolicy
from sluice.tables.register import TableRegister, as_it_is, as_seen, differs
from sluice.tables.schemas import relation_of, same_columns
from sluice.tables.shape_history import BACK


class CatalogJudge:
    def __init__(self, register: TableRegister, generations: Generations) -> None:
        self._register = register
        self._generations = generations

    def take(self, seen: CatalogSeen) -> None:
        """What the facts say of a table that has not changed since before the look."""
        facts, generations = seen.facts, self._generations
        known = generations.named(facts)
        configured = self._register.configured
        if not configured.selects(facts, known):
            if known is not None:
                generations.detach(facts.oid, UNSELECTED)
        elif known is None:
            generations.join(relation_of(facts), facts, seen.before.values())
        elif known.state.is_followed:
            if moves(known, self._register.taken(), configured.policies) and generations.stale.rested(known):
                generations.begin(facts, known, Unseen(Cause.RENAME, f"its lake table moves from {known.path}"))
            else:
                self._take_carried(seen, known)
        elif known.state == State.STALE:
            generations.heal(facts)
        elif known.state == State.DETACHED:
            generations.begin(facts, known, Unseen(Cause.PUBLICATION, "the table was not carried for a while"))
        elif known.state == State.QUARANTINED and generations.stale.may_try(facts, known):
            generations.begin(facts, known, Unseen(Cause.RECOVERED, "the table could not be carried before"))

    def awaits(self, facts: TableFacts, state: TableState, wal_end: int) -> bool:
        """Whether the catalog showed another shape than the newest one of `state`, when the server was at `wal_end`: it
        is awaited from now on.
        """
        latest = state.latest
        if latest is None or same_columns(latest, facts):
            return False
        self._register.history.awaited[facts.oid] = fingerprint(facts), wal_end
        return True

    def _take_carried(self, seen: CatalogSeen, known: TableState) -> None:
        facts, wal_end = seen.facts, seen.wal_end
        # What a snapshot was taken under, its own end compares.
        if not self._generations.refuses(facts, known) and known.state != State.SNAPSHOT:
            through_lsn = self._register.through_lsn
            key_lsn = self._register.history.key_lsn(known, facts, wal_end=wal_end)
            others = (one.fingerprint for one in seen.before.values())
            unseen = _unseen(known, facts, self._register.policy(known), key_lsn=key_lsn, others=others)
            if unseen is not None:
                self._generations.lose(facts.oid, unseen, facts, lsn=through_lsn)
                return
            if self._awaits_return(facts, known, wal_end) or self._awaits_end(facts, known, wal_end):
                return
            if differs(known, facts) and self._register.history.knows_key(facts.oid, through_lsn=through_lsn):
                self._register.append(as_seen(as_it_is(known), facts))
            self._follow_catalog(facts, self._register.states()[known.table_id], wal_end)

    def _awaits_return(self, facts: TableFacts, known: TableState, wal_end: int) -> bool:
        """Whether the shape that was awaited has gone again, and the stream has yet to come to where a look found so:
        at positions before that the table had it. Until then nothing is noted of the look: whoever looks next, in this
        process or another, finds the same.
        """
        if known.state != State.PENDING or known.latest is None or not same_columns(known.latest, facts):
            return False
        awaited = self._register.history.awaited
        what, position = awaited.get(facts.oid, (fingerprint(facts), 0))
        if what == fingerprint(facts) and not differs(known, facts):
            return False
        if what != BACK:
            awaited[facts.oid] = BACK, wal_end
            return True
        return self._register.through_lsn < position

    def _awaits_end(self, facts: TableFacts, known: TableState, wal_end: int) -> bool:
        """Whether a column came and went since the look before, and the stream has yet to come to where this look found
        it gone: at positions before that the table had it. The table is pending until then.
        """
        latest = known.latest
        if known.state != State.LIVE or latest is None or latest.attributes >= facts.attributes:
            return False
        if not same_columns(latest, facts) or attributes_seen(known.fingerprint) >= facts.attributes:
            return False
        if self._register.through_lsn >= wal_end:
            return False
        self._register.history.awaited[facts.oid] = BACK, wal_end
        self._register.become(known, State.PENDING, Reason(ReasonCode.SHAPE_AWAITED))
        return True

    def _follow_catalog(self, facts: TableFacts, state: TableState, wal_end: int) -> None:
        """A shape that no row announces is followed once the stream has passed the position at
        which the catalog was seen to have it. Every row that was sent by then is of an older shape, or
        would have announced this one; and none of an older shape can follow, since whoever wrote one
        held a lock that kept the shape from changing until its transaction had ended.
        """
        latest = state.latest
        if latest is not None and same_columns(latest, facts):
            self._register.history.awaited.pop(facts.oid, None)
            self._register.history.settle(facts.oid)
            # What the wire does not say of the same shape: the primary key under another identity.
            unchanged = partial(_require_same, state, facts, self._register.policy(state))
            same = self._generations.follow(state, self._register.through_lsn, unchanged)
            if same is not None and state.state == State.PENDING:
                self._register.become(state, State.LIVE, None)
            return
        seen = fingerprint(facts)
        before, position = self._register.history.awaited.get(facts.oid, ("", 0))
        if before != seen:
            self._register.history.awaited[facts.oid] = (seen, wal_end)
            if state.state == State.LIVE:
                said = "columns changed, and no row has announced it yet"
                self._register.say("info", said, table=state.source_name, lsn=show(wal_end))
                self._register.become(state, State.PENDING, Reason(ReasonCode.SHAPE_AWAITED))
        elif self._register.through_lsn >= position:
            # Before every commit that is still to come: those begin at this position or behind it.
            at = self._register.through_lsn - 1
            changed = partial(reshape, self._register, relation_of(facts), state, facts, position_lsn=at)
            self._generations.follow(state, at, changed)
            now = self._register.states()[state.table_id]
            if now.state == State.PENDING:
                self._register.become(now, State.LIVE, None)


def _unseen(
    state: TableState,
    facts: TableFacts,
    policy: TablePolicy,
    *,
    key_lsn: int,
    others: Iterable[str],
) -> Unseen | None:
    """Why the lake table of `state` may no longer equal the table that `facts` describe, although the stream
    says nothing. Behind a gap also columns that changed since, for the lake has those from in front of it. At
    `key_lsn` the primary key was still the one that the state knows. `others` are those of `compare`.
    """
    if state.gap is not None:
        held = state.schemas[state.gap.schema_version]
        if held.version != state.schema_version or not same_columns(held, facts):
            return Unseen(Cause.SCHEMA, "its columns have changed since changes were lost")
    latest = state.latest
    known = {column.attnum: column.ignored for column in latest.columns} if latest is not None else {}
    rules = policy.rules_of(facts, latest)
    # One that the lake has goes on being followed, whenever the catalog was looked at last.
    leaves_out = latest is not None and policy.contract == "ignore_new"
    ignored = {
        column.attnum
        for column in facts.sent_columns
        if rules.excludes(column.attnum) or known.get(column.attnum, leaves_out)
    }
    key_unsent = _took_key_from_catalog(state, key_lsn)
    return compare(
        state.relfilenode,
        state.fingerprint,
        facts,
        casts_only=policy.casts_only,
        ignored=ignored,
        key_unsent=key_unsent,
        others=others,
    )


def _took_key_from_catalog(state: TableState, after_lsn: int) -> bool:
    """Whether rows that committed after `after_lsn` may have a key that the wire does not say."""
    versions = sorted(state.schema_lsns)
    ends = [state.schema_lsns[version] for version in versions[1:]] + [after_lsn + 1]
    return any(
        state.schemas[version].replica_identity == "f" and state.schemas[version].key_columns and end > after_lsn
        for version, end in zip(versions, ends, strict=True)
    )


def _require_same(state: TableState, facts: TableFacts, policy: TablePolicy) -> TableSchema | None:
    """The newest shape, which has the columns of `facts`. Raises CannotFollow when other columns
    identify its rows now.
    """
    lost = step(state, relation_of(facts), facts, policy).lost
    if lost is not None:
        raise CannotFollow(lost, facts)
    return state.latest
