"""Tables that no longer equal their source: what is recorded, and when one is read again without
anybody asking. What the applier finds out by itself is `stale` of its `TableProgress`.

Invariant: a table goes stale in the manifest first, with its cause; its next generation begins only
where the policy and the pauses of `Resyncs` allow it, and the entry says until when it waits. Pure.
"""

from sluice.backoff import RetryTime
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.reasons import Reason
from sluice.contract.resyncs import Cause, text
from sluice.contract.table_state import State
from sluice.lsn import show
from sluice.manifest.values import TableState
from sluice.tables.catalog_diff import Unseen
from sluice.tables.register import TableRegister, differs

RETRY_SECONDS = (5.0, 30.0, 120.0, 600.0)
"""Pauses before a table that the server refused to let be read is tried again; the last one
repeats. Each try costs the source a snapshot.
"""


class StaleTables:
    def __init__(self, register: TableRegister) -> None:
        self._register = register
        self._refused: dict[int, RetryTime] = {}
        """By oid, when the snapshot of a table may be tried again that the server refused."""

    def lose(self, state: TableState, unseen: Unseen, *, lsn: int) -> None:
        """Records that the lake table of `state` no longer equals its source."""
        cause, what = unseen.cause, unseen.reason
        at = self._resync_at(state, cause)
        self._register.say(
            "error",
            "table went stale",
            table=state.source_name,
            reason=what,
            lsn=show(lsn),
            resync_at=at or None,
        )
        self._register.become(state, State.STALE, Reason.of(cause, what), lsn=lsn, cause=cause, resync_at=at)

    def must_wait(self, state: TableState, cause: Cause) -> bool:
        """Whether a table that changed for `cause` is not read again now: it must rest first."""
        return self._is_automatic(state, cause) and not self.rested(state)

    def rested(self, state: TableState) -> bool:
        """Whether the table may be read again now without anybody asking."""
        now = self._register.moment.now
        return state.resyncs.next_at(now) <= now

    def is_due(self, state: TableState) -> bool:
        """Whether a stale table is read again now. A policy that has changed since is stated."""
        cause = Cause(state.cause) if state.cause else Cause.GAP
        at = self._resync_at(state, cause)
        if bool(at) != bool(state.resync_at):
            self._register.become(state, state.state, state.why, cause=state.cause, resync_at=at)
        return bool(at) and self.rested(state)

    def refused(self, oid: int) -> None:
        """The server refused to let the table be read: it is tried again after a pause."""
        self._refused.setdefault(oid, RetryTime(RETRY_SECONDS)).failed(self._register.moment.seconds)

    def taken(self, oid: int) -> None:
        """The snapshot of the table was taken."""
        self._refused.pop(oid, None)

    def may_try(self, facts: TableFacts, known: TableState) -> bool:
        """Whether the cause of a quarantine may be gone. No condition shows what the server refused
        while a table was read: that is tried again and again.
        """
        if differs(known, facts):
            return True
        refused, policy = self._refused.get(facts.oid), self._register.configured.policies.of(facts.schema, facts.name)
        refusal = policy.refusal(facts, known.latest)
        return refusal is None and (refused is None or refused.due(self._register.moment.seconds))

    def _is_automatic(self, state: TableState, cause: Cause) -> bool:
        return cause.heals and self._register.policy(state).on_change == "resync"

    def _resync_at(self, state: TableState, cause: Cause) -> str:
        return text(state.resyncs.next_at(self._register.moment.now)) if self._is_automatic(state, cause) else ""
