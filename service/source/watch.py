"""What the stream cannot show, found by comparing two looks at the catalog. Pure.

Invariant: `compare` gives a reason whenever rows of the table may have changed, come or gone without an event (a rewrite that computed values, renamed enum
labels, partitions attached, detached or truncated below a published root, a filter that changed), and none for what leaves every row as it was: VACUUM
FULL, TRUNCATE (which is streamed), ANALYZE, an index, a column's statistics. In doubt it gives the reason: a needless copy costs time, a missed one truth.
(PostgreSQL: ALTER TABLE, Notes; Logical Replication, Restrictions.)
"""

import json
from typing import Any

from service.source.catalog import ATTACHED, TableFacts

_FORMAT = 3


def fingerprint(facts: TableFacts) -> str:
    """Everything that `compare` looks at, and what decides whether the table can be carried at all, as text to keep; equal for equal facts."""
    seen = {
        "format": _FORMAT,
        "name": [facts.schema, facts.name],
        "persistence": facts.relpersistence,
        "publishes": facts.publishes,
        "memberships": list(facts.memberships),
        "altered": facts.publication_altered,
        "filter": facts.row_filter,
        "list": sorted(facts.published_columns or ()) if facts.has_column_list else None,
        "columns": {str(column.attnum): [column.name, column.xmin, column.generated] for column in facts.columns},
        "details": dict(facts.type_details),
        "identity": facts.replica_identity,
        "leaves": {str(leaf.oid): [leaf.relfilenode, leaf.relpersistence, list(leaf.levels)] for leaf in facts.children},
        "rights": [facts.schema_usable, facts.selectable, facts.policies_apply],
        "leaf identities": {str(leaf.oid): [leaf.replica_identity, sorted(leaf.identity_columns)] for leaf in facts.children},
    }
    return json.dumps(seen, separators=(",", ":"), sort_keys=True)


def compare(old_relfilenode: int, old_fingerprint: str, facts: TableFacts) -> str | None:
    """Why the lake copy may no longer equal the table, in one sentence; None when every change since then is in the stream or changes no row.

    Without an earlier fingerprint there is nothing to compare, and no reason.
    """
    if not old_fingerprint:
        return None
    old: dict[str, Any] = json.loads(old_fingerprint)
    if old["format"] != _FORMAT:
        return "the catalog was last looked at by another version of Sluice, and the looks cannot be compared"
    return _membership(old, facts) or _columns(old, facts) or _storage(old, old_relfilenode, facts) or _types(old, facts) or _leaves(old, facts)


def _membership(old: dict[str, Any], facts: TableFacts) -> str | None:
    if old["name"] != [facts.schema, facts.name]:
        return f"the table was renamed from {'.'.join(old['name'])}"
    if old["publishes"] != facts.publishes:
        return f"the publication's flags changed from {old['publishes']} to {facts.publishes}: some changes may not have been sent"
    if old["filter"] != facts.row_filter:
        return "the publication's row filter changed: rows came into it or left it without an event"
    if old["list"] != (sorted(facts.published_columns or ()) if facts.has_column_list else None):
        return "the publication's column list changed: older rows hold values that were not sent"
    if old["memberships"] and not set(old["memberships"]) & set(facts.memberships):
        return "the table left the publication and came back: what happened to it in between was not sent"
    if old["altered"] != facts.publication_altered:
        return "the publication itself was altered, if only for a moment: some changes may not have been sent"
    return None


def _columns(old: dict[str, Any], facts: TableFacts) -> str | None:
    """A column that was dropped and added again with the same name and type gives a relation message equal to the last one, byte for byte."""
    now = {column.name: str(column.attnum) for column in facts.columns}
    for attnum, (name, *_) in old["columns"].items():
        if now.get(name, attnum) != attnum:
            return f"column {name} was dropped and added again: older rows lost their values without an event"
    return None


def _storage(old: dict[str, Any], old_relfilenode: int, facts: TableFacts) -> str | None:
    if old["persistence"] != facts.relpersistence:
        return "the table was made logged or unlogged: what was written while it was unlogged is not in the stream"
    for column in facts.columns:
        before = old["columns"].get(str(column.attnum))
        if before is not None and before[2] != column.generated:
            return f"column {column.name} began or ceased to be generated: older rows hold values that were not sent"
    if facts.relkind == "p" or old_relfilenode in (0, facts.relfilenode):
        return None
    for column in facts.columns:
        before = old["columns"].get(str(column.attnum))
        if before is None and column.missing is None:
            return f"the table was rewritten and column {column.name} was added: older rows may hold values in it that were not sent"
        if before is not None and before[1] != column.xmin:
            return f"the table was rewritten and column {column.name} was altered: older rows may hold other values than were sent"
    return None


def _types(old: dict[str, Any], facts: TableFacts) -> str | None:
    for key, spelling in facts.type_details:
        before = old["details"].get(key, spelling)
        if before != spelling:
            if key.startswith("label "):
                return f"the enum label {before!r} was renamed to {spelling!r}: rows read differently without an event"
            return "a composite type of one of its columns was altered: rows read differently without an event"
    return None


def _leaves(old: dict[str, Any], facts: TableFacts) -> str | None:
    now = {str(leaf.oid): leaf for leaf in facts.children}
    if set(old["leaves"]) - set(now):
        return "a partition was detached or dropped: its rows left without an event"
    known = {level for _, _, levels in old["leaves"].values() for level in levels}
    for oid, leaf in now.items():
        name = f"{leaf.schema}.{leaf.name}"
        before = old["leaves"].get(oid)
        if before is None:
            if any(level.endswith(ATTACHED) and level not in known for level in leaf.levels):
                return f"partition {name} was attached: the rows it had came without an event"
        elif before[2] != list(leaf.levels):
            return f"partition {name} was detached and attached again: what happened to it in between was not sent"
        elif before[:2] != [leaf.relfilenode, leaf.relpersistence]:
            return f"partition {name} was truncated or rewritten: under a published root that is not in the stream"
    return None
