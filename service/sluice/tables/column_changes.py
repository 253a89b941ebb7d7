"""From one shape of a table to the next: which columns rows have, and what the step means for the table.

Invariant: a version is in the manifest before a row is in it, and only if the lake can follow it and
no value came with it that was not sent. A step that cannot be followed exactly is named, with its
cause; nothing here decides what becomes of the table then.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.conditions import refusal_of
from sluice.contract.evolution import (
    IGNORED,
    KINDS,
    Identified,
    drops_old_values,
    identified_alike,
    keys_of,
    sent_identity,
    steps,
    unsent,
)
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice.manifest.values import TableState
from sluice.protocol.messages import RelationVersion
from sluice.tables.catalog_diff import Unseen
from sluice.tables.column_matching import Matched, match, match_again
from sluice.tables.column_policy import other_rules, rules_differ, under_policy
from sluice.tables.events import RowsCame
from sluice.tables.policies import TablePolicy
from sluice.tables.register import TableRegister
from sluice.tables.schemas import build_schema, relation_of, relation_sent_as, same_shape


@dataclass(frozen=True, slots=True)
class ShapeStep:
    """`schema` is the shape as the next version, `kinds` are those of the differences (none for the
    first shape). `lost` is why it cannot be followed.
    """

    schema: TableSchema
    kinds: tuple[str, ...] = ()
    lost: Unseen | None = None

    @property
    def changes_columns(self) -> bool:
        return any(kind != KINDS[Identified] for kind in self.kinds)


def step(
    state: TableState,
    relation: RelationVersion,
    facts: TableFacts | None,
    policy: TablePolicy,
    *,
    matched: Matched | None = None,
) -> ShapeStep:
    """From the newest shape of `state` to that of `relation`; `facts` is None when the table is gone.
    `matched` are the columns of `relation`, None when it is that of `facts`.
    """
    found = _step(state, relation, facts, matched, policy)
    if policy.contract != "stop" or not found.changes_columns:
        return found
    what = found.lost.reason if found.lost is not None else _names_of_added(state.latest, found.schema)
    return replace(found, lost=_broken(what))


def _broken(what: str) -> Unseen:
    return Unseen(Cause.CONTRACT, f"its contract is stop, and its columns changed: {what}")


def _step(
    state: TableState,
    relation: RelationVersion,
    facts: TableFacts | None,
    matched: Matched | None,
    policy: TablePolicy,
) -> ShapeStep:
    latest = state.latest
    # Its name is what the catalog says, and no part of its shape.
    relation = replace(relation, schema=state.schema_name, name=state.table_name)
    schema = build_schema(relation, facts, latest, latest.version + 1 if latest else 1, matched=matched)
    schema = under_policy(schema, latest, policy)
    if latest is None:
        return ShapeStep(schema)
    if said := other_rules(latest, schema):
        return ShapeStep(schema, ("other",), Unseen(Cause.RULES, said))
    if back := _wanted_again(latest, schema):
        return ShapeStep(schema, ("other",), Unseen(Cause.SCHEMA, back))
    if lost := _unplaced_key(latest, schema, facts) or _lost_old_rows(latest, schema, policy):
        return ShapeStep(schema, ("other",), Unseen(Cause.KEY, lost))
    try:
        found = steps(latest.asked_for, schema.asked_for)
    except UnsupportedChange as error:
        alike = keys_of(latest) == keys_of(schema)
        return ShapeStep(schema, ("other",), Unseen(Cause.SCHEMA if alike else Cause.KEY, str(error)))
    kinds = tuple(KINDS[type(one)] for one in found)
    if (latest.ignored_columns, latest.excluded) != (schema.ignored_columns, schema.excluded):
        kinds = (*kinds, IGNORED)
    whole = [one.replica_identity == "f" for one in (latest, schema, facts) if one is not None]
    if policy.casts_only and schema.key_columns and whole == [False, True, False]:
        # A key that was made anew for a wider type does not say that it was gone meanwhile.
        return ShapeStep(
            schema, kinds, Unseen(Cause.KEY, "old rows were sent whole for a while, perhaps without a key")
        )
    lost = unsent(found, facts, old_relfilenode=state.relfilenode, casts_only=policy.casts_only)
    if not lost and (refused := refusal_of(schema)) is not None:
        lost = refused.what
    return ShapeStep(schema, kinds, Unseen(Cause.SCHEMA, lost) if lost else None)


def _unplaced_key(latest: TableSchema, schema: TableSchema, facts: TableFacts | None) -> str:
    """Why it cannot be said from which row on other columns identify the rows, empty when it can: by what
    the wire says of old rows.
    """
    if identified_alike(latest, schema):
        return ""
    if sent_identity(latest) == sent_identity(schema):
        return "the key changed: old rows are sent whole, so no row says from where on it was another one"
    if same_shape(latest, relation_sent_as(schema)):
        return "the key changed, and rows look as they did before: another column has its name"
    if (facts is None or facts.relkind == "p") and (latest.replica_identity, schema.replica_identity) != ("d", "d"):
        return "the key changed: partitions get another replica identity one by one, and rows do not say from where on"
    return ""


def _lost_old_rows(latest: TableSchema, schema: TableSchema, policy: TablePolicy) -> str:
    if not policy.keeps_changes or not drops_old_values(latest, schema):
        return ""
    return "old rows are sent with fewer columns, which its changelog would lose"


def _wanted_again(before: TableSchema, after: TableSchema) -> str:
    """Why rows must be read that have values which were left out, empty when there are none."""
    left_out = {column.attnum for column in before.ignored_columns}
    names = ", ".join(column.name for column in after.asked_for.columns if column.attnum in left_out)
    return f"its contract no longer leaves out {names}: older rows lack the values" if names else ""


def _names_of_added(before: TableSchema | None, after: TableSchema) -> str:
    known = {column.name for column in before.sent} if before is not None else set()
    names = ", ".join(column.name for column in after.sent if column.name not in known)
    return f"added {names}" if names else "they are other ones"


def unhealed(state: TableState, facts: TableFacts, policy: TablePolicy) -> Unseen | None:
    """What keeps the table of `facts` from being read again by itself, None where nothing does."""
    lost = step(state, relation_of(facts), facts, policy).lost
    return lost if lost is not None and not lost.cause.heals else None


class CannotFollow(Exception):
    """Why the lake cannot follow a table to its next shape; `facts` are what the catalog said of it."""

    def __init__(self, unseen: Unseen, facts: TableFacts | None) -> None:
        super().__init__(unseen.reason)
        self.unseen = unseen
        self.facts = facts


def version_of(register: TableRegister, rows: RowsCame, state: TableState) -> TableSchema | None:
    """The schema version of `rows` of a table that is followed, perhaps a new one. Raises CannotFollow."""
    relation, policy, latest = rows.relation, register.policy(state), state.latest
    if rows.position_lsn < state.lsn:
        # Written before the snapshot was taken: the snapshot has it, in whatever shape it was.
        older = [schema for schema in state.schemas.values() if same_shape(schema, relation)]
        return max(older, key=lambda schema: schema.version, default=None)
    if said := rules_differ(state, policy):
        raise CannotFollow(Unseen(Cause.RULES, said), register.facts(relation.oid))
    known = register.history.version_at(state, relation, rows.position_lsn)
    if latest is None or (known is not None and not (known is latest and register.history.is_doubtful(relation.oid))):
        return known
    facts = register.facts(relation.oid)
    find = match if known is None else match_again
    try:
        matched = find(relation, latest, facts, xid=rows.xid, said=_said_since(state, rows))
    except UnsupportedChange as error:
        unseen = _broken(str(error)) if policy.contract == "stop" else Unseen(Cause.SCHEMA, str(error))
        raise CannotFollow(unseen, facts) from None
    if matched is None:
        return known
    return reshape(register, relation, state, facts, position_lsn=rows.position_lsn, matched=matched)


def _said_since(state: TableState, rows: RowsCame) -> AbstractSet[int] | None:
    """Columns that commands wrote between the newest shape and the transaction of `rows`."""
    if rows.columns_said is None:
        return None
    since_lsn = max(state.lsn, state.schema_lsn)
    return {attnum for attnum, lsn in rows.columns_said if lsn > since_lsn}


def reshape(
    register: TableRegister,
    relation: RelationVersion,
    state: TableState,
    facts: TableFacts | None,
    *,
    position_lsn: int,
    matched: Matched | None = None,
) -> TableSchema | None:
    """The next schema version, in force from `position_lsn` on, or the newest one if nothing has
    changed. Raises CannotFollow.
    """
    found = step(state, relation, facts, register.policy(state), matched=matched)
    if found.lost is not None:
        raise CannotFollow(found.lost, facts)
    latest = state.latest
    if latest is None or not found.kinds:
        return latest
    if not identified_alike(latest, found.schema) and register.history.continues(relation.oid, position_lsn):
        what = "the key changed between rows of one transaction, which the lake gets at once"
        raise CannotFollow(Unseen(Cause.KEY, what), facts)
    for kind in found.kinds:
        register.note_schema_change(kind, "followed")
    register.follow(state, found.schema, lsn=position_lsn)
    register.history.forget(relation.oid)
    register.history.began(found.schema, position_lsn)
    return found.schema
