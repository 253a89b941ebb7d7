"""What the present difference between a table of the catalog and the manifest would do to its lake
table. Pure.

Invariant: what decides where ingest acts decides here, on a copy of the manifest's state of which nothing is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.evolution import keys_of
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.manifest.state import decided
from sluice.manifest.values import PipelineState, TableState
from sluice.tables import events
from sluice.tables.events import Configured, Event, Moment, NeedFacts
from sluice.tables.life import TableLives

Effect = Literal["nothing", "followed", "snapshot", "stop"]
_ASKED = "; `sluice resync` would then read it again"
_RESTED = datetime(9999, 1, 1, tzinfo=UTC)
"""By then every table may be read again that may be without anybody asking."""


@dataclass(frozen=True, slots=True)
class Preview:
    """`effect` on the lake table: `followed` changes what it is called, its columns or its settings, `snapshot` reads
    all rows, `stop` leaves it behind until somebody acts. `why` is one sentence, empty for nothing.
    """

    effect: Effect
    why: str = ""
    cause: str = ""


class Previews:
    """`published` are the tables that the publication carries, by oid."""

    def __init__(self, published: Mapping[int, TableFacts], manifest: PipelineState, configured: Configured) -> None:
        self._published, self._manifest = published, manifest
        self._lives = TableLives(configured.patterns, configured.policies)

    def of(self, oid: int) -> Preview:
        before, facts = self._manifest.tables.get(str(oid)), self._published.get(oid)
        is_carried = before is not None and before.state != State.DETACHED
        if facts is None:
            return _left("the publication no longer carries it") if is_carried else Preview("nothing")
        after = self._after(facts).tables.get(str(oid))
        if after is None or after.state == State.DETACHED:
            return _left("source.tables no longer selects it") if is_carried else Preview("nothing")
        if after.state == State.QUARANTINED:
            return Preview("stop", _why(after))
        if before is None or not is_carried:
            return Preview("snapshot", "it joins")
        if before.state.is_followed:
            return _changed(before, after)
        if after.state == State.STALE:
            return Preview("stop", after.reason, after.cause)
        return Preview("snapshot", before.reason or "it could not be carried before", before.cause)

    def _after(self, facts: TableFacts) -> PipelineState:
        """The state in which the manifest will be when the stream has come to where the catalog is now."""
        state, at = self._manifest, self._manifest.through_lsn
        answers = events.Answers(at)

        def give(event: Event[object]) -> None:
            nonlocal state
            while isinstance(found := self._lives.decide(event, Moment(state, at, _RESTED, 0.0, answers)), NeedFacts):
                assert found.oid is not None
                answers.facts[found.oid] = self._published.get(found.oid)
            for decision in found.decisions:
                if isinstance(decision, events.TableChange):
                    state = decided(state, decision.entry, written_at=_RESTED.isoformat())

        give(events.ConnectionEnded())  # nothing of the table before is known here
        for _ in range(2):  # the first look finds another shape, and the second one that the stream has passed it
            give(events.CatalogSeen(facts, state.tables, at))
        before = self._manifest.tables.get(str(facts.oid))
        if before is not None and before.state == State.SNAPSHOT:
            give(events.SnapshotDue(facts))
        return state


def _left(why: str) -> Preview:
    return Preview("stop", f"{why}: its lake table stays as it is")


def _changed(before: TableState, after: TableState) -> Preview:
    """What becomes of a table that is followed."""
    if after.state == State.STALE:
        return Preview("stop", _why(after) + _ASKED, after.cause)
    has_name = (before.schema_name, before.table_name) == (after.schema_name, after.table_name)
    renamed = "" if has_name else f"renamed from {before.source_name}; "
    if after.generation > before.generation and after.why is not None:
        return Preview("snapshot", (renamed if after.cause == Cause.RENAME else "") + _why(after), after.cause)
    said = [f"{renamed}its lake table stays at {after.path}"] if renamed else []
    is_read = after.generation > before.generation
    if before.latest is not None and after.latest is not None and after.schema_version > before.schema_version:
        said.append(_shape(before.latest, after.latest, is_read=is_read))
    if is_read:
        return Preview("snapshot", "; ".join(said))
    return Preview("followed", "; ".join(said)) if said else Preview("nothing")


def _why(state: TableState) -> str:
    return state.why.what if state.why is not None else ""


def _shape(latest: TableSchema, now: TableSchema, *, is_read: bool) -> str:
    """What the newest shape has of columns that the one before has not. The table `is_read` in it, or goes on."""
    types = {column.attnum: column.type_name for column in now.sent}
    before = {column.attnum: column.name for column in latest.sent}
    after = {column.attnum: column.name for column in now.sent}
    left_out = {column.attnum for column in now.left_out}
    changes = [
        f"column {name} added" + (" and left out" if attnum in left_out else "")
        for attnum, name in after.items()
        if attnum not in before
    ]
    changes += [f"column {name} dropped" for attnum, name in before.items() if attnum not in after]
    changes += [
        f"column {name} renamed to {after[attnum]}"
        for attnum, name in before.items()
        if after.get(attnum, name) != name
    ]
    changes += [
        f"column {after[column.attnum]} changed from {column.type_name} to {types[column.attnum]}"
        for column in latest.sent
        if types.get(column.attnum, column.type_name) != column.type_name
    ]
    if keys_of(latest) != keys_of(now):
        names = ", ".join(column.name for column in now.key_columns)
        goes_on = "" if is_read else " from then on, without a new snapshot"
        changes.append(f"rows identified by {names or 'all of their values'}{goes_on}")
    return ", ".join(changes) or "its columns or identity changed"
