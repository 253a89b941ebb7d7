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

_WHOLE_SCHEMAS = "SELECT s.pnnspid AS oid FROM pg_catalog.pg_publication_namespace s JOIN pub ON pub.oid = s.pnpubid"

PARTS_OF_TYPE = """SELECT t.typbasetype WHERE t.typtype = 'd'
    UNION ALL SELECT t.typelem WHERE t.typelem <> 0
    UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
    UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE t.typtype = 'c'
        AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped"""
"""The types that values of the type `t` are made of, as `(oid)`."""

# Needs `pub`, `lineage (oid, ancestor, ...)` and `whole_schemas` before it, and a closing parenthesis.
SENT = """members AS (
    SELECT r.prrelid AS oid FROM pg_catalog.pg_publication_rel r JOIN pub ON pub.oid = r.prpubid
    UNION
    SELECT mc.oid FROM pg_catalog.pg_class mc JOIN whole_schemas w ON w.oid = mc.relnamespace
        WHERE pg_catalog.pg_relation_is_publishable(mc.oid)
), sent AS (
    SELECT sc.oid FROM pg_catalog.pg_class sc CROSS JOIN pub
    WHERE pub.puballtables AND pg_catalog.pg_relation_is_publishable(sc.oid) AND CASE WHEN pub.pubviaroot
        THEN NOT sc.relispartition ELSE sc.relkind = 'r' END
    UNION
    SELECT m.oid FROM members m JOIN pg_catalog.pg_class sc ON sc.oid = m.oid CROSS JOIN pub
    WHERE CASE WHEN pub.pubviaroot THEN NOT EXISTS (SELECT 1 FROM lineage l
        JOIN members above ON above.oid = l.ancestor WHERE l.oid = m.oid)
               ELSE sc.relkind = 'r' END
    UNION
    SELECT l.oid FROM members m JOIN lineage l ON l.ancestor = m.oid JOIN pg_catalog.pg_class sc ON sc.oid = l.oid
        CROSS JOIN pub
    WHERE NOT pub.pubviaroot AND sc.relkind = 'r'"""
"""Which tables the publication sends, under their own names: the only place that decides it."""


def whole_schemas(server_version: int) -> str:
    """The schemas that publication `pub` has as a whole, since PostgreSQL 15."""
    return _WHOLE_SCHEMAS if server_version >= 150000 else "SELECT NULL::oid AS oid WHERE false"


def versions_sql(server_version: int) -> bytes:
    """A row (oid, number) for each table that publication %(publication)s sends. Waits for no lock on
    a table.
    """
    return (
        _VERSIONS % {"whole_schemas": whole_schemas(server_version), "sent": SENT, "parts_of_type": PARTS_OF_TYPE}
    ).encode()


# A table depends on itself, the partitions below it and the tables above it. Types, rights and the
# publication itself are of all tables that have to do with them.
_VERSIONS = """
WITH RECURSIVE pub AS (
    SELECT f.oid, f.xmin AS altered, f.puballtables, f.pubviaroot
    FROM pg_catalog.pg_publication f WHERE f.pubname = %%(publication)s
), lineage (oid, ancestor) AS (
    SELECT i.inhrelid, i.inhparent FROM pg_catalog.pg_inherits i
        JOIN pg_catalog.pg_class pc ON pc.oid = i.inhrelid AND pc.relispartition
    UNION ALL
    SELECT l.oid, i.inhparent FROM lineage l JOIN pg_catalog.pg_inherits i ON i.inhrelid = l.ancestor
), whole_schemas AS (
    %(whole_schemas)s
), %(sent)s
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
    UNION ALL
    SELECT pg_catalog.hash_record_extended(ROW(w.oid, 0), 9) FROM whole_schemas w
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
    SELECT i.inhrelid, pg_catalog.hash_record_extended(ROW(i.inhrelid, i.inhparent, i.xmin), 13), false
    FROM pg_catalog.pg_inherits i
    UNION ALL
    SELECT r.prrelid, pg_catalog.hash_record_extended(ROW(r.oid, r.xmin), 14), false
    FROM pg_catalog.pg_publication_rel r JOIN pub ON pub.oid = r.prpubid
), of_tables (oid, version, typed) AS (
    SELECT r.oid, pg_catalog.bit_xor(b.version), pg_catalog.bool_or(b.typed)
    FROM related r JOIN part_rows b ON b.oid = r.part GROUP BY r.oid
)
SELECT t.oid::int8,
    t.version # COALESCE((SELECT pg_catalog.bit_xor(s.version) FROM shared_rows s), 0)
        # CASE WHEN t.typed THEN COALESCE((SELECT pg_catalog.bit_xor(y.version) FROM type_rows y), 0) ELSE 0 END
FROM of_tables t
"""
