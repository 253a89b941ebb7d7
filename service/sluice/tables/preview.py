"""What the present difference between a table of the catalog and the manifest would do to its lake
table. Pure.

Invariant: the same rules decide here and where ingest acts; nothing is recorded, and nobody is asked.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.evolution import keys_of
from sluice.contract.lake_names import split
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.manifest.values import TableState
from sluice.tables.column_changes import step, unseen_of
from sluice.tables.column_policy import ruled_root
from sluice.tables.policies import TablePolicy
from sluice.tables.schemas import relation_of

Effect = Literal["nothing", "followed", "snapshot", "stop"]
_ASKED = "; `sluice resync` would then read it again"


@dataclass(frozen=True, slots=True)
class Preview:
    """`effect` on the lake table: `followed` changes what it is called, its columns or its settings, `snapshot` reads
    all rows, `stop` leaves it behind until somebody acts. `why` is one sentence, empty for nothing.
    """

    effect: Effect
    why: str = ""
    cause: str = ""


def preview_of(
    state: TableState | None,
    facts: TableFacts | None,
    policy: TablePolicy,
    *,
    selected: bool,
    known: Collection[TableState] = (),
) -> Preview:
    """`facts` is None for a table that the publication does not carry. `known` are the states of all tables."""
    carried = facts is not None and selected
    if state is None or state.state == State.DETACHED:
        if facts is None or not selected:
            return Preview("nothing")
        root = ruled_root(facts, known, policy.ruled) if state is None else ""
        refused = policy.refusal(facts, state.latest if state is not None else None, root=root)
        return Preview("stop", refused.what) if refused is not None else Preview("snapshot", "it joins")
    if facts is None or not carried:
        why = "the publication no longer carries it" if facts is None else "source.tables no longer selects it"
        return Preview("stop", f"{why}: its lake table stays as it is")
    if (refused := policy.refusal(facts, state.latest)) is not None:
        return Preview("stop", refused.what)
    if not state.state.is_followed:
        return _behind(state)
    return _changed(state, facts, policy, [one.fingerprint for one in known])


def _behind(state: TableState) -> Preview:
    """Nothing follows it now."""
    if state.state == State.QUARANTINED or state.resync_at:
        return Preview("snapshot", state.reason or "it could not be carried before", state.cause)
    return Preview("stop", state.reason, state.cause)


def _changed(state: TableState, facts: TableFacts, policy: TablePolicy, others: Collection[str]) -> Preview:
    found = step(state, relation_of(facts), facts, policy)
    unseen = unseen_of(state, facts, policy, others=others) if state.state != State.SNAPSHOT else None
    lost = found.lost if found.lost is not None and not found.lost.cause.heals else unseen or found.lost
    if lost is not None:
        if lost.cause.heals and policy.on_change == "resync":
            return Preview("snapshot", lost.reason, lost.cause)
        return Preview("stop", lost.reason + _ASKED, lost.cause)
    said = []
    renamed = ""
    if (state.schema_name, state.table_name) != (facts.schema, facts.name):
        renamed = f"renamed from {state.schema_name}.{state.table_name}; "
        said.append(f"{renamed}its lake table stays at {state.path}")
    # Not only a rename moves it: the policy or the template of paths may be new.
    own = policy.names.place_of_its_own(facts.oid, facts.schema, facts.name)
    places = {split(place)[0] for place in (policy.names.place(facts.schema, facts.name), own)}
    if policy.on_rename == "move" and state.path not in places:
        return Preview("snapshot", f"{renamed}its lake table moves from {state.path}", Cause.RENAME)
    if found.kinds:
        said.append(_shape(state, facts, found.schema))
    return Preview("followed", "; ".join(said)) if said else Preview("nothing")


def _shape(state: TableState, facts: TableFacts, now: TableSchema) -> str:
    known = state.schemas[state.schema_version].sent
    types = {column.attnum: column.type_name for column in facts.sent_columns}
    before = {column.attnum: column.name for column in known}
    after = {column.attnum: column.name for column in facts.sent_columns}
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
        for column in known
        if types.get(column.attnum, column.type_name) != column.type_name
    ]
    if keys_of(state.schemas[state.schema_version]) != keys_of(now):
        names = ", ".join(column.name for column in now.key_columns)
        changes.append(f"rows identified by {names or 'all of their values'} from then on, without a new snapshot")
    return ", ".join(changes) or "its columns or identity changed"
