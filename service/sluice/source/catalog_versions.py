"""One number for each published table: what the catalog watch asks for at each look, instead of all
facts of all tables.

Invariant: whatever `Catalog.published_tables` says of a table is made from rows of the catalog, and
each of these is part of the table's number, by its transaction: PostgreSQL never changes a row of
the catalog that a fact is made of without writing a new version of it, and a transaction that we can
see writes no more. A version that was frozen keeps its transaction, and one that was written by
another transaction of the same number lies 2^32 transactions apart, which no two looks do. What
PostgreSQL changes in place (statistics of ANALYZE and VACUUM, that an index exists) is no fact, but
for the estimate of rows; what a transaction that rolled back left behind (xmax) is no change.

Numbers are combined by exclusive or, so that no order matters and a row that went is seen like one
that came. (PostgreSQL: System Catalogs; System Columns.)
"""

PARTS_OF_TYPE = """SELECT t.typbasetype WHERE t.typtype = 'd'
    UNION ALL SELECT t.typelem WHERE t.typelem <> 0
    UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
    UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE t.typtype = 'c'
        AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped"""
"""The types that values of the type `t` are made of, as `(oid)`."""

# Needs a closing parenthesis. A partition that is being detached belongs to no root: the server reads
# and sends it so, though its row is there until the detachment is complete.
_SENT = """pub AS (
    SELECT f.oid, f.puballtables, f.pubviaroot, f.xmin::text AS altered,
        COALESCE(pg_catalog.to_jsonb(f) ->> 'pubgencols', 'n') = 's' AS generated,
           CASE WHEN f.pubinsert THEN 'i' ELSE '' END || CASE WHEN f.pubupdate THEN 'u' ELSE '' END
               || CASE WHEN f.pubdelete THEN 'd' ELSE '' END
               || CASE WHEN f.pubtruncate THEN 't' ELSE '' END || CASE WHEN f.pubviaroot THEN 'r' ELSE '' END
               || CASE WHEN pg_catalog.to_jsonb(f) ->> 'pubgencols' = 's' THEN 'g' ELSE '' END AS publishes
    FROM pg_catalog.pg_publication f WHERE f.pubname = %%(publication)s
), inherited AS (
    SELECT i.inhrelid, i.inhparent, i.inhrelid || ':' || i.xmin AS level
    FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class pc ON pc.oid = i.inhrelid AND pc.relispartition
    WHERE NOT i.inhdetachpending
), lineage (oid, ancestor, levels) AS (
    SELECT i.inhrelid, i.inhparent, ARRAY[i.level] FROM inherited i
    UNION ALL
    SELECT l.oid, i.inhparent, l.levels || i.level FROM lineage l JOIN inherited i ON i.inhrelid = l.ancestor
), entries AS (
    SELECT r.oid, r.prrelid, r.oid || ':' || r.xmin AS version, %(excepted)s AS excepted,
        pg_catalog.to_jsonb(r) ->> 'prqual' IS NOT NULL AS has_filter,
        pg_catalog.to_jsonb(r) ->> 'prattrs' IS NOT NULL AS has_list
    FROM pg_catalog.pg_publication_rel r JOIN pub ON pub.oid = r.prpubid
), whole_schemas (oid, version) AS (
    %(whole_schemas)s
), tables AS (
    SELECT c.oid, c.relkind, c.relispartition, c.relnamespace
    FROM pg_catalog.pg_class c WHERE c.relkind IN ('r', 'p') AND pg_catalog.pg_relation_is_publishable(c.oid)
), written_anew (oid, version, names) AS MATERIALIZED (
    SELECT o.oid, (SELECT a.xmin::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = o.oid AND a.attnum > 0
            AND NOT a.attisdropped ORDER BY pg_catalog.age(a.xmin) DESC LIMIT 1),
        ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a WHERE a.attrelid = o.oid AND a.attnum > 0
            AND NOT a.attisdropped)
    FROM pg_catalog.pg_class o JOIN pg_catalog.pg_attribute s ON s.attrelid = o.oid AND s.attnum = -1
        JOIN pg_catalog.pg_attribute f ON f.attrelid = o.oid AND f.attnum = 1
    WHERE o.relkind IN ('r', 'p') AND o.relpersistence <> 't' AND NOT o.relispartition AND o.oid >= 16384
        AND f.xmin <> s.xmin AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.xmin = s.xmin)
), members AS (
    SELECT e.prrelid AS oid FROM entries e WHERE NOT e.excepted
    UNION
    SELECT t.oid FROM tables t JOIN whole_schemas w ON w.oid = t.relnamespace
), sent AS (
    SELECT t.oid FROM tables t CROSS JOIN pub
    WHERE pub.puballtables AND CASE WHEN pub.pubviaroot THEN NOT t.relispartition ELSE t.relkind = 'r' END
        AND NOT EXISTS (SELECT 1 FROM entries e WHERE e.excepted AND (e.prrelid = t.oid
            OR e.prrelid IN (SELECT l.ancestor FROM lineage l WHERE l.oid = t.oid)))
    UNION
    SELECT t.oid FROM members m JOIN tables t ON t.oid = m.oid CROSS JOIN pub
    WHERE CASE WHEN pub.pubviaroot THEN NOT EXISTS (SELECT 1 FROM lineage l
        JOIN members above ON above.oid = l.ancestor WHERE l.oid = m.oid)
               ELSE t.relkind = 'r' END
    UNION
    SELECT l.oid FROM members m JOIN lineage l ON l.ancestor = m.oid JOIN tables t ON t.oid = l.oid CROSS JOIN pub
    WHERE NOT pub.pubviaroot AND t.relkind = 'r'
), published AS (
    SELECT s.oid, pub.publishes, COALESCE(e.has_list, false) AS has_list, pub.generated, e.oid AS entry,
        COALESCE(e.has_filter, false) AS has_filter
    FROM sent s CROSS JOIN pub LEFT JOIN entries e ON e.prrelid = s.oid AND NOT pub.puballtables
        AND NOT EXISTS (SELECT 1 FROM whole_schemas w JOIN pg_catalog.pg_class sc ON sc.relnamespace = w.oid
            WHERE sc.oid = s.oid)
), upwards (oid, ancestor, levels) AS (
    SELECT p.oid, p.oid, '' FROM published p
    UNION ALL
    SELECT l.oid, l.ancestor, ' ' || pg_catalog.array_to_string(l.levels, ' ') FROM lineage l
        JOIN published p ON p.oid = l.oid
), memberships (oid, spelled) AS (
    SELECT p.oid, 'all tables ' || pub.oid FROM published p CROSS JOIN pub WHERE pub.puballtables
    UNION ALL
    SELECT p.oid, 'exceptions' FROM published p WHERE EXISTS (SELECT 1 FROM entries e WHERE e.excepted)
    UNION ALL
    SELECT u.oid, 'entry ' || e.version || u.levels FROM upwards u JOIN entries e ON e.prrelid = u.ancestor
    UNION ALL
    SELECT u.oid, 'schema ' || w.version || ' ' || dep.xmin || u.levels FROM upwards u
    JOIN pg_catalog.pg_depend dep ON dep.classid = 'pg_catalog.pg_class'::regclass AND dep.objid = u.ancestor
        AND dep.objsubid = 0 AND dep.refclassid = 'pg_catalog.pg_namespace'::regclass
    JOIN whole_schemas w ON w.oid = dep.refobjid
), removals (entries, schemas) AS (
    SELECT pg_catalog.pg_stat_get_tuples_deleted('pg_catalog.pg_publication_rel'::regclass), %(removed_schemas)s
), exposed (oid, removals) AS (
    SELECT p.oid, CASE WHEN %(exposed)s THEN x.entries + x.schemas WHEN p.has_filter THEN x.schemas END
    FROM published p CROSS JOIN pub CROSS JOIN removals x"""
"""Which tables the publication sends, under their own names, and every row of the catalog that makes it
so: the only place that decides it, for facts and for their numbers alike.

`memberships` names these rows, each with its transaction, and the steps from the table up to what they
are about. A table that moves to another schema and back has the same row of pg_class, but another
version of the one that says on which schema it depends. What was added and is gone again leaves no row;
the server counts rows that it removed. `exposed` has the count for tables that such an entry or schema
would have concerned: it lifts a filter, stands above a partition, filters a leaf beside its root, or
excepts a table from all of them.

ATTACH and DETACH write each column of a partition anew. `written_anew` has tables that are none now and were
treated so: by the column that was written first, for what is done later is done to others. It has
the names of their columns, which a root had alike, but for some that came or went since.
"""

_EXPOSED = """(t.relispartition AND (pub.pubviaroot OR %(filters)s AND NOT pub.puballtables AND NOT EXISTS
        (SELECT 1 FROM memberships m WHERE m.oid = p.oid AND m.spelled ~ '^(entry [^ ]+|schema [^ ]+ [^ ]+)$'))
        OR pub.puballtables AND %(excepts)s)"""


def sent_sql(server_version: int) -> str:
    """The head of a WITH RECURSIVE, up to a last parenthesis: see _SENT."""
    since_15, since_19 = server_version >= 150000, server_version >= 190000
    schemas = "SELECT s.pnnspid, s.oid || ':' || s.xmin FROM pg_catalog.pg_publication_namespace s JOIN pub ON "
    exposed = _EXPOSED % {"filters": str(since_15).lower(), "excepts": str(since_19).lower()}
    return _SENT % {
        "excepted": "r.prexcept" if since_19 else "false",
        "whole_schemas": schemas + "pub.oid = s.pnpubid" if since_15 else "SELECT NULL::oid, '' WHERE false",
        "removed_schemas": removed_schemas_sql(server_version),
        "exposed": f"(SELECT {exposed} FROM pg_catalog.pg_class t WHERE t.oid = p.oid)",
    }


def removed_schemas_sql(server_version: int) -> str:
    """How many schemas left publications; a far greater number after the counts of the database were reset
    by hand. After a crash they begin anew without a time, but on 14.
    """
    if server_version < 150000:
        return "0"
    return """pg_catalog.pg_stat_get_tuples_deleted('pg_catalog.pg_publication_namespace'::regclass)
        + COALESCE((SELECT EXTRACT(epoch FROM pg_catalog.pg_stat_get_db_stat_reset_time(d.oid)) * 1000000
            FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()), 0)::int8"""


def versions_sql(server_version: int) -> bytes:
    """A row (oid, number) for each table that publication %(publication)s sends. Waits for no lock on
    a table.
    """
    return (_VERSIONS % {"sent": sent_sql(server_version), "parts_of_type": PARTS_OF_TYPE}).encode()


# A table depends on itself, the partitions below it and the tables above it. Types, rights and the
# publication itself are of all tables that have to do with them.
_VERSIONS = """
WITH RECURSIVE %(sent)s
), related (oid, part) AS MATERIALIZED (
    SELECT s.oid, s.oid FROM sent s
    UNION ALL
    SELECT s.oid, l.oid FROM sent s JOIN lineage l ON l.ancestor = s.oid
    UNION ALL
    SELECT s.oid, l.ancestor FROM sent s JOIN lineage l ON l.oid = s.oid
), parts AS MATERIALIZED (
    SELECT DISTINCT r.part AS oid FROM related r
), types (oid) AS (
    SELECT DISTINCT a.atttypid FROM pg_catalog.pg_attribute a
    WHERE a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 12000 AND a.attrelid IN (SELECT p.oid FROM parts p)
    UNION
    SELECT x.oid FROM types u JOIN pg_catalog.pg_type t ON t.oid = u.oid CROSS JOIN LATERAL (
        %(parts_of_type)s
    ) x (oid)
), type_rows (version) AS (
    SELECT pg_catalog.hash_record_extended(ROW(t.oid, t.xmin, n.xmin, f.oid, f.xmin, fn.xmin), 1)
    FROM types u JOIN pg_catalog.pg_type t ON t.oid = u.oid JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
        JOIN pg_catalog.pg_proc f ON f.oid = t.typoutput JOIN pg_catalog.pg_namespace fn ON fn.oid = f.pronamespace
    UNION ALL
    SELECT pg_catalog.hash_record_extended(ROW(e.oid, e.xmin), 2)
    FROM types u JOIN pg_catalog.pg_enum e ON e.enumtypid = u.oid
    UNION ALL
    SELECT pg_catalog.hash_record_extended(ROW(a.attrelid, a.attnum, a.xmin), 3)
    FROM types u JOIN pg_catalog.pg_type t ON t.oid = u.oid AND t.typtype = 'c'
        JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
), roles (oid) AS (
    SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = CURRENT_USER
    UNION
    SELECT m.roleid FROM roles u JOIN pg_catalog.pg_auth_members m ON m.member = u.oid
), shared_rows (version) AS (
    SELECT pg_catalog.hash_record_extended(ROW(pub.oid, pub.altered), 5) FROM pub
    UNION ALL
    SELECT pg_catalog.hash_record_extended(ROW(r.oid, r.rolsuper, r.rolinherit, r.rolbypassrls), 6)
    FROM roles u JOIN pg_catalog.pg_roles r ON r.oid = u.oid
    UNION ALL
    SELECT pg_catalog.hash_record_extended(ROW(m.roleid, m.member, m.xmin), 7)
    FROM roles u JOIN pg_catalog.pg_auth_members m ON m.member = u.oid
    UNION ALL
    SELECT pg_catalog.hash_record_extended(ROW(d.oid, d.datdba), 8)
    FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
), part_rows (oid, version, typed) AS (
    SELECT c.oid, pg_catalog.hash_record_extended(ROW(c.oid, c.xmin, n.oid, n.xmin), 10), false
    FROM parts p JOIN pg_catalog.pg_class c ON c.oid = p.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    UNION ALL
    SELECT a.attrelid, pg_catalog.bit_xor(pg_catalog.hash_record_extended(ROW(a.attrelid, a.attnum, a.xmin), 11)),
        pg_catalog.bool_or(a.atttypid >= 12000)
    FROM pg_catalog.pg_attribute a WHERE a.attnum > 0 AND a.attrelid IN (SELECT p.oid FROM parts p) GROUP BY a.attrelid
    UNION ALL
    SELECT i.indrelid, pg_catalog.hash_record_extended(ROW(i.indexrelid, i.xmin), 12), false
    FROM pg_catalog.pg_index i WHERE i.indisprimary OR i.indisreplident
    UNION ALL
    SELECT k.conrelid, pg_catalog.hash_record_extended(ROW(k.oid, k.xmin), 16), false
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_constraint k ON k.conrelid = c.oid
    WHERE c.relreplident = 'i' AND k.contype = 'n' AND NOT k.convalidated
    UNION ALL
    SELECT i.inhrelid, pg_catalog.hash_record_extended(ROW(i.level, i.inhparent), 13), false FROM inherited i
), of_tables (oid, version, typed) AS (
    SELECT r.oid, pg_catalog.bit_xor(b.version), pg_catalog.bool_or(b.typed)
    FROM related r JOIN part_rows b ON b.oid = r.part GROUP BY r.oid
), of_memberships (oid, version) AS (
    SELECT v.oid, pg_catalog.bit_xor(pg_catalog.hashtextextended(v.spelled, 14)) FROM (
        SELECT m.oid, m.spelled FROM memberships m
        UNION ALL SELECT x.oid, COALESCE(x.removals::text, '') FROM exposed x) v GROUP BY v.oid
)
SELECT t.oid::int8,
    t.version # m.version # COALESCE((SELECT pg_catalog.bit_xor(s.version) FROM shared_rows s), 0)
        # CASE k.relkind WHEN 'p'
            THEN COALESCE((SELECT pg_catalog.bit_xor(pg_catalog.hash_record_extended(ROW(w.oid, w.version), 15))
            FROM written_anew w), 0) ELSE 0 END
        # CASE WHEN t.typed THEN COALESCE((SELECT pg_catalog.bit_xor(y.version) FROM type_rows y), 0) ELSE 0 END
FROM of_tables t JOIN of_memberships m ON m.oid = t.oid JOIN tables k ON k.oid = t.oid
"""
