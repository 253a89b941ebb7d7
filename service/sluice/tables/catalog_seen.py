"""What one look at the catalog means for a table: it joins, leaves, is lost, begins again, or has another shape.
Pure.

Invariant: what the stream does not say is never taken for what it says. A shape that no row announces is followed
behind every row of an older one; what may have changed rows without an event turns the table stale, by name.
"""

from functools import partial

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.reasons import UNSELECTED, Reason, ReasonCode
from sluice.contract.resyncs import Cause
from sluice.contract.table_state import State
from sluice.lsn import show
from sluice.manifest.values import TableState
from sluice.tables.catalog_diff import Unseen, fingerprint
from sluice.tables.column_changes import require_same, reshape, unseen_of
from sluice.tables.events import CatalogSeen
from sluice.tables.generations import Generations
from sluice.tables.lake_paths import moves
from sluice.tables.register import TableRegister, as_it_is, as_seen, differs
from sluice.tables.schemas import relation_of, same_columns


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
            if moves(known, self._register.states(), configured.policies) and generations.stale.rested(known):
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
            unseen = unseen_of(known, facts, self._register.policy(known), key_lsn=key_lsn, others=others)
            if unseen is not None:
                self._generations.lose(facts.oid, unseen, facts, lsn=through_lsn)
                return
            if differs(known, facts) and self._register.history.knows_key(facts.oid, through_lsn=through_lsn):
                self._register.append(as_seen(as_it_is(known), facts))
            self._follow_catalog(facts, self._register.states()[known.table_id], wal_end)

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
            unchanged = partial(require_same, state, facts, self._register.policy(state))
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
