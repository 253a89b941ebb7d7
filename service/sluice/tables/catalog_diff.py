"""What the stream cannot show, found by comparing two looks at the catalog. Pure.

Two looks are samples: what was done and undone between them is seen by the versions and numbers of
catalog rows, which no undoing brings back. What the earlier look does not have is doubt, unless the
catalog proves how it came to be.

Invariant: `compare` gives a reason whenever rows of the table may have changed, come or gone
without an event (a rewrite that computed values, renamed enum labels, partitions attached, detached
or truncated below a published root, a filter that changed), and none for what leaves every row as
it was: VACUUM FULL, TRUNCATE (which is streamed), ANALYZE, an index, a column's statistics. In
doubt it gives the reason: a needless snapshot costs time, a missed one truth. (PostgreSQL: ALTER TABLE,
Notes; Logical Replication, Restrictions.)
"""

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.contract.evolution import is_rewritten, widens
from sluice.contract.resyncs import Cause
from sluice.contract.schema import ColumnSchema
from sluice.contract.types import lake_type

_FORMAT = 6
_OTHER_KEY = "the primary key is not the one that it was: rows from in between may not have been identified by it"


@dataclass(frozen=True, slots=True)
class Unseen:
    """What the stream did not show: `reason` is one sentence."""

    cause: Cause
    reason: str


def fingerprint(facts: TableFacts) -> str:
    """Everything that `compare` looks at, and what decides whether the table can be carried at all,
    as text to keep; equal for equal facts.
    """
    seen = {
        "format": _FORMAT,
        "name": [facts.schema, facts.name],
        "persistence": facts.relpersistence,
        "publishes": facts.publishes,
        "memberships": list(facts.memberships),
        "altered": facts.publication_altered,
        "removals": facts.removals,
        "filter": facts.row_filter,
        "list": sorted(facts.published_columns or ()) if facts.has_column_list else None,
        "columns": {
            str(column.attnum): [column.name, column.xmin, column.generated, column.type_oid, column.typmod]
            for column in facts.columns
        },
        "details": {detail.key: [detail.spelling, detail.version] for detail in facts.type_details},
        "attributes": facts.attributes,
        "primary key": facts.primary_key,
        "toast": facts.toast,
        "identity": facts.replica_identity,
        "leaves": {
            str(leaf.oid): [leaf.relfilenode, leaf.relpersistence, list(leaf.levels), leaf.version, leaf.settings]
            for leaf in facts.children
        },
        "former leaves": list(facts.former_leaves),
        "rights": [facts.schema_usable, facts.selectable, facts.policies_apply],
        "leaf identities": {
            str(leaf.oid): [leaf.replica_identity, sorted(leaf.identity_columns)] for leaf in facts.children
        },
    }
    return json.dumps(seen, separators=(",", ":"), sort_keys=True)


def attributes_seen(seen: str) -> int:
    """The highest attnum that the table had used, by its fingerprint; 0 if that is empty."""
    return int(json.loads(seen).get("attributes", 0)) if seen else 0


def leaves_seen(seen: str) -> set[int]:
    """The oids of the leaves that a partitioned table had, by its fingerprint; that may be empty."""
    return {int(oid) for oid in json.loads(seen).get("leaves", ())} if seen else set()


def compare(
    old_relfilenode: int,
    old_fingerprint: str,
    facts: TableFacts,
    *,
    casts_only: bool = False,
    ignored: Collection[int] = (),
    key_unsent: bool = True,
    others: Iterable[str] = (),
) -> Unseen | None:
    """Why the lake table may no longer equal the table; None when every change since then is in the
    stream or changes no row.

    Without an earlier fingerprint there is nothing to compare, and no reason. `casts_only`: somebody who knows says
    what nobody sees, that a rewrite which gave columns wider types computed no other values for them. Columns in
    `ignored` (attnums) are left out. `key_unsent`: rows may have been identified by the catalog's primary key, and not
    by what the server sent of old rows. `others` are the fingerprints of all tables from before the look.
    """
    if not old_fingerprint:
        return None
    old: dict[str, Any] = json.loads(old_fingerprint)
    if old["format"] != _FORMAT:
        reason = "another version of Sluice read the catalog last, and the two readings cannot be compared"
        return Unseen(Cause.REWRITE, reason)
    found = (
        (Cause.PUBLICATION, _membership(old, facts)),
        (Cause.KEY, _OTHER_KEY if key_unsent and old["primary key"] != facts.primary_key else None),
        (Cause.REWRITE, _storage(old, old_relfilenode, facts, ignored, casts_only=casts_only)),
        (Cause.TYPE, _types(old, facts)),
        (Cause.PARTITION, _leaves(old, facts, others)),
    )
    return next((Unseen(cause, reason) for cause, reason in found if reason), None)


_EXCEPTIONS = "exceptions"
"""The membership of a publication of all tables that leaves some out."""


def _membership(old: dict[str, Any], facts: TableFacts) -> str | None:
    if old["publishes"] != facts.publishes:
        return (
            f"the publication's flags changed from {old['publishes']} to {facts.publishes}: some changes "
            "may not have been sent"
        )
    if old["filter"] != facts.row_filter:
        return "the publication's row filter changed: rows entered it or left it without an event"
    if old["list"] != (sorted(facts.published_columns or ()) if facts.has_column_list else None):
        return "the publication's column list changed: older rows hold values that were not sent"
    if _named(old["memberships"]) and _named(old["memberships"]) != _named(facts.memberships):
        return "the table left the publication and came back, in part at least: what happened in between was not sent"
    if _was_attached(old, facts):
        return "the table may have been attached to another one for a moment: changes may have been sent as that one's"
    if 0 <= old["removals"] != facts.removals > 0 and not facts.removals_known <= old["removals"] < facts.removals:
        return "an entry of a publication came and went, perhaps one about the table: changes may not have been sent"
    if old["altered"] != facts.publication_altered:
        return "the publication itself was altered, if only for a moment: some changes may not have been sent"
    return None


def _was_attached(old: dict[str, Any], facts: TableFacts) -> bool:
    """Whether each column has another row in the catalog, as ATTACH PARTITION and DETACH PARTITION make them,
    where it matters for what is sent.
    """
    before = [old["columns"].get(str(column.attnum)) for column in facts.columns]
    changed = [known[1] != column.xmin for known, column in zip(before, facts.columns, strict=True) if known]
    matters = "r" in facts.publishes or _EXCEPTIONS in (*old["memberships"], *facts.memberships)
    return matters and bool(changed) and all(changed)


def _named(memberships: Iterable[str]) -> list[str]:
    """What makes the publication send the table, without what it says of other tables."""
    return [one for one in memberships if one != _EXCEPTIONS]


def other_primary_key(old_fingerprint: str, facts: TableFacts) -> bool:
    """Whether the primary key came, went or was made anew since."""
    return bool(old_fingerprint) and json.loads(old_fingerprint)["primary key"] != facts.primary_key


def _storage(
    old: dict[str, Any], old_relfilenode: int, facts: TableFacts, ignored: Collection[int], *, casts_only: bool
) -> str | None:
    if old["persistence"] != facts.relpersistence:
        return "the table was made logged or unlogged: what was written while it was unlogged is not in the stream"
    asked_for = [column for column in facts.sent_columns if column.attnum not in ignored]
    # What is wider without a rewrite does not say why there was one.
    cast = casts_only and any(_is_wider(old, column, by_rewrite=True) for column in asked_for)
    for column in asked_for:
        before = old["columns"].get(str(column.attnum))
        if before is not None and before[2] != column.generated and not _was_sent(old, before):
            return f"column {column.name} ceased to be generated: older rows hold values that were not sent"
    if facts.relkind == "p" or old_relfilenode in (0, facts.relfilenode):
        return None
    for column in asked_for:
        before = old["columns"].get(str(column.attnum))
        if before is None and column.missing is None:
            return (
                f"the table was rewritten and column {column.name} was added: older rows may hold values "
                "in it that were not sent"
            )
        if before is not None and before[1] != column.xmin and not (cast and _is_wider(old, column)):
            return (
                f"the table was rewritten and column {column.name} was altered: older rows may hold other "
                "values than were sent"
            )
    if old["toast"] not in (0, facts.toast) and not _always_logged(old):  # TRUNCATE keeps it
        return (
            "the table was rewritten, and the publication does not name it: it may have been unlogged "
            "for a moment, and what was written then was not sent"
        )
    return None


def _is_wider(old: dict[str, Any], column: ColumnFacts, *, by_rewrite: bool = False) -> bool:
    """Whether the column got another type, which has every value of the one before; with `by_rewrite` one
    for which the table is written anew.
    """
    before = old["columns"].get(str(column.attnum))
    if before is None or tuple(before[3:]) == (column.type_oid, column.typmod):
        return False
    types = _of_type(*before[3:]), _of_type(column.type_oid, column.typmod)
    return widens(*types) and (not by_rewrite or is_rewritten(*types))


def _of_type(type_oid: int, typmod: int) -> ColumnSchema:
    return ColumnSchema("", 0, type_oid, typmod, "", lake_type(type_oid, typmod))


def _was_sent(old: dict[str, Any], column: list[Any]) -> bool:
    """Whether a generated column's values were sent."""
    name, _, generated, *_ = column
    return generated == "s" and ("g" in old["publishes"] or name in (old["list"] or ()))


def _always_logged(old: dict[str, Any]) -> bool:
    """Whether PostgreSQL refused to make the table unlogged: it does so where a publication names
    the table itself, not its schema or root.
    """
    return any(re.fullmatch(r"entry \S+", membership) for membership in old["memberships"])


def _types(old: dict[str, Any], facts: TableFacts) -> str | None:
    """A detail that is new may have been another one for a while, unless it is as its type was
    created; TRUNCATE and rewrites of storage leave all as it is.
    """
    known = {_type_of(key) for key in old["details"]}
    for detail in facts.type_details:
        before = old["details"].get(detail.key)
        if before == [detail.spelling, detail.version] or (before is None and detail.original):
            continue
        if not detail.key.startswith("label "):
            return "a composite type of one of its columns was altered: rows read differently without an event"
        if before is None and _type_of(detail.key) in known:
            # ADD VALUE. That the label had another name for a moment, in which rows were written
            # with it, nothing shows: see docs/guarantees.md.
            continue
        if before is None:
            return (
                f"the enum label {detail.spelling!r} was added: rows from before this was seen may have "
                "had it under another name"
            )
        if before[0] != detail.spelling:
            return (
                f"the enum label {before[0]!r} was renamed to {detail.spelling!r}: rows read differently "
                "without an event"
            )
        return (
            f"the enum label {detail.spelling!r} was altered, if only for a moment: rows from in between "
            "may read otherwise"
        )
    return None


def _type_of(key: str) -> str:
    """The kind of a detail and the oid of the type that it belongs to."""
    return " ".join(key.split(" ")[:2])


def _leaves(old: dict[str, Any], facts: TableFacts, others: Iterable[str]) -> str | None:
    now = {str(leaf.oid): leaf for leaf in facts.children}
    if set(old["leaves"]) - set(now):
        return "a partition was detached or dropped: its rows left without an event"
    came = {one.partition(":")[0] for one in facts.former_leaves if one not in old["former leaves"]}
    # A partition that left another followed table is not taken for one of this.
    if came and came - {oid for seen in others if seen for oid in json.loads(seen).get("leaves", ())}:
        return "another table may have been a partition of it for a moment: rows that were sent as its own are gone"
    known = {level for leaf in old["leaves"].values() for level in leaf[2]}
    for oid, leaf in now.items():
        name = f"{leaf.schema}.{leaf.name}"
        before = old["leaves"].get(oid)
        if before is None:
            if set(leaf.attached) - known:
                return f"partition {name} was attached: the rows it had came without an event"
            if not leaf.in_first_storage:
                return (
                    f"partition {name} was truncated or rewritten since it was created: under a published "
                    "root that is not in the stream"
                )
        elif before[2] != list(leaf.levels):
            return f"partition {name} was detached and attached again: what happened to it in between was not sent"
        elif before[:2] != [leaf.relfilenode, leaf.relpersistence]:
            return f"partition {name} was truncated or rewritten: under a published root that is not in the stream"
        elif before[3] != leaf.version and before[4] == leaf.settings:
            return f"partition {name} was altered and altered back: old rows from in between may lack values"
    return None
