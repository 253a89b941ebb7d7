"""Comments, keys and labels of tables, from the catalog.

Invariant: no text comes over whose length is not bounded, no lock on a table is asked for, and a query ends after
`_LIMIT`. (PostgreSQL: pg_description, pg_constraint, pg_enum.)
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sluice.contract.description import (
    LONGEST_COMMENT,
    LONGEST_TABLE_COMMENT,
    MOST_FOREIGN_KEYS,
    MOST_LABELS,
    Description,
    ForeignKey,
)
from sluice.source.sessions import Connection, translated

AT_ONCE = 500
"""Tables that one query is about."""
_LIMIT = "10s"

# A number of what would be read is compared first: nothing but that is sent of tables that say what they said. One
# character more than is kept shows that a comment was longer. Of a foreign key to a partitioned table, the rows for
# the partitions of that table are left out.
_SAID = f"""
SELECT o.oid::int8 AS oid, pg_catalog.jsonb_build_object(
    'comment', COALESCE((SELECT pg_catalog.left(d.description, {LONGEST_TABLE_COMMENT + 1})
        FROM pg_catalog.pg_description d WHERE d.classoid = 'pg_catalog.pg_class'::regclass AND d.objoid = o.oid
        AND d.objsubid = 0), ''),
    'comments', COALESCE((SELECT pg_catalog.jsonb_object_agg(d.objsubid,
            pg_catalog.left(d.description, {LONGEST_COMMENT + 1}))
        FROM pg_catalog.pg_description d WHERE d.classoid = 'pg_catalog.pg_class'::regclass AND d.objoid = o.oid
        AND d.objsubid > 0), '{{}}'),
    'primary_key', COALESCE((SELECT pg_catalog.to_jsonb(k.conkey) FROM pg_catalog.pg_constraint k
        WHERE k.conrelid = o.oid AND k.contype = 'p'), '[]'),
    'foreign_keys', COALESCE((SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(k.conname, k.conkey,
            n.nspname || '.' || r.relname, (SELECT pg_catalog.jsonb_agg(a.attname ORDER BY u.place)
                FROM pg_catalog.unnest(k.confkey) WITH ORDINALITY u (attnum, place)
                JOIN pg_catalog.pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.attnum))
            ORDER BY k.conname, k.oid)
        FROM (SELECT f.* FROM pg_catalog.pg_constraint f WHERE f.conrelid = o.oid AND f.contype = 'f'
            ORDER BY f.conname, f.oid LIMIT {MOST_FOREIGN_KEYS * 2}) k
        JOIN pg_catalog.pg_class r ON r.oid = k.confrelid JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
        WHERE NOT (k.conparentid <> 0 AND r.relispartition)), '[]'),
    'labels', COALESCE((SELECT pg_catalog.jsonb_object_agg(a.attnum, l.labels)
        FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
        CROSS JOIN LATERAL (SELECT pg_catalog.jsonb_agg(e.enumlabel ORDER BY e.enumsortorder) AS labels
            FROM (SELECT i.enumlabel, i.enumsortorder FROM pg_catalog.pg_enum i
                WHERE i.enumtypid = COALESCE(NULLIF(t.typbasetype, 0), t.oid)
                ORDER BY i.enumsortorder LIMIT {MOST_LABELS + 1}) e) l
        WHERE a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped AND l.labels IS NOT NULL), '{{}}')) AS said
FROM pg_catalog.unnest(%s::oid[]) AS o (oid)
"""
_NUMBERS = f"SELECT s.oid, pg_catalog.hashtextextended(s.said::text, 0) FROM ({_SAID}) s"


def numbers(connection: Connection, oids: Sequence[int]) -> dict[int, int]:
    """By oid, a number that is another one when `descriptions` says something else. Raises SourceError."""
    return dict(_asked(connection, _NUMBERS, oids))


def descriptions(connection: Connection, oids: Sequence[int]) -> Iterator[tuple[int, Description]]:
    """What the catalog says of each table. Raises SourceError."""
    for oid, said in _asked(connection, _SAID, oids):
        yield oid, _description(said)


def _asked(connection: Connection, command: str, oids: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(oids), AT_ONCE):
        with translated("reading the comments of tables"), connection.transaction():
            connection.execute(f"SET LOCAL statement_timeout = '{_LIMIT}'".encode())
            found = connection.execute(command.encode(), (list(oids[start : start + AT_ONCE]),)).fetchall()
        yield from found


def _description(said: dict[str, Any]) -> Description:
    return Description(
        said["comment"],
        tuple(said["primary_key"]),
        tuple(
            ForeignKey(name, tuple(columns), table, tuple(references or ()))
            for name, columns, table, references in said["foreign_keys"]
        ),
        {int(attnum): comment for attnum, comment in said["comments"].items()},
        {int(attnum): tuple(labels) for attnum, labels in said["labels"].items()},
    )
