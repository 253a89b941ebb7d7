"""What the catalog says about published tables, as values: today's facts, while the stream may be
hours behind.

Invariant: one query per look, so that the facts of a table are of one moment; everything is looked
up by oid, never by guessing names. Must not: read user tables, nor wait for a lock on one.
(PostgreSQL: System Catalogs; pg_publication, pg_publication_rel, pg_publication_namespace.)
"""

from collections.abc import Sequence
from typing import Any

from sluice import lsn
from sluice.contract.catalog_facts import (
    ChildFacts,
    ColumnFacts,
    PublicationFacts,
    TableFacts,
    TypeDetail,
    Visible,
    storage_of,
)
from sluice.contract.types import NAMES
from sluice.source.catalog_versions import PARTS_OF_TYPE, removed_schemas_sql, sent_sql, versions_sql
from sluice.source.sessions import WAL_END, Connection, translated

_Rows = list[dict[str, Any]] | None


class Catalog:
    """Reads the catalog over one pinned query session; raises SourceError."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._version = conn.pgconn.server_version

    def publication(self, name: str) -> PublicationFacts | None:
        """None when there is no such publication."""
        with translated("reading the publication"):
            row = self._conn.execute(
                "SELECT pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, puballtables FROM "
                "pg_catalog.pg_publication WHERE pubname = %s",
                (name,),
            ).fetchone()
        if row is None:
            return None
        insert, update, delete, truncate, via_root, all_tables = row
        return PublicationFacts(
            name=name,
            insert=insert,
            update=update,
            delete=delete,
            truncate=truncate,
            via_root=via_root,
            all_tables=all_tables,
        )

    def published_tables(self, publication: str) -> list[TableFacts]:
        """The tables whose changes the publication sends, in order of their names."""
        return self._load("p.oid IS NOT NULL", publication=publication)

    def published_among(self, oids: Sequence[int], *, publication: str) -> list[TableFacts]:
        """Those of the tables with these oids that the publication sends now."""
        return self._load(
            "p.oid IS NOT NULL AND c.oid = ANY (%(oids)s::oid[])", publication=publication, oids=list(oids)
        )

    def published_versions(self, publication: str) -> dict[int, int]:
        """By oid, a number for each table whose changes the publication sends, which is another one
        whenever anything that `published_tables` says of it may be (see catalog_versions).
        """
        with translated("reading the catalog"):
            rows = self._conn.execute(versions_sql(self._version), {"publication": publication}).fetchall()
        return dict(rows)

    def publication_entries_of_all(self) -> tuple[set[int], int]:
        """The oids of the entries and schemas of all publications, and how many were removed so far."""
        kinds = ("rel", "namespace")[: 2 if self._version >= 150000 else 1]
        rows = " UNION ALL ".join(f"SELECT oid FROM pg_catalog.pg_publication_{kind}" for kind in kinds)
        deleted = "pg_catalog.pg_stat_get_tuples_deleted('pg_catalog.pg_publication_rel'::regclass)"
        schemas = removed_schemas_sql(self._version)
        command = f"SELECT pg_catalog.array_agg(e.oid::int8), {deleted} + {schemas} FROM ({rows}) e"
        with translated("reading the entries of publications"):
            row = self._conn.execute(command.encode()).fetchone()
        assert row is not None
        return set(row[0] or ()), row[1]

    def table(self, oid: int, *, publication: str = "") -> TableFacts | None:
        """The table with this oid; with `publication`, also its filter and columns there. None when
        it is gone.
        """
        found = self.tables([oid], publication=publication)
        return found[0] if found else None

    def tables(self, oids: Sequence[int], *, publication: str = "") -> list[TableFacts]:
        """The same of several tables at once; those that are gone are left out."""
        return self._load("c.oid = ANY (%(oids)s::oid[])", publication=publication, oids=list(oids)) if oids else []

    def existing(self, oids: Sequence[int]) -> set[int]:
        """Those of these oids that are tables, published or not."""
        command = b"SELECT oid::int8 FROM pg_catalog.pg_class WHERE relkind IN ('r', 'p') AND oid = ANY (%s::oid[])"
        with translated("checking which tables are gone"):
            return {oid for (oid,) in self._conn.execute(command, (list(oids),)).fetchall()}

    def row_filter(self, facts: TableFacts) -> str:
        """The SQL condition of the rows that the publication sends, empty when it sends all. Asked
        where the table is locked already: the server looks into it.
        """
        if not facts.row_filter:
            return ""
        command = b"SELECT pg_catalog.pg_get_expr(prqual, prrelid) FROM pg_catalog.pg_publication_rel WHERE oid = %s"
        with translated(f"reading the row filter of {facts.qualified_name}"):
            row = self._conn.execute(command, (facts.row_filter,)).fetchone()
        return row[0] if row is not None else "false"

    def publication_entries(self, publication: str) -> list[tuple[str, str]]:
        """(schema, name) of the tables that the publication names one by one, partitioned ones among
        them that it does not carry under their own names.
        """
        command = b"""
            SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_publication_rel r
                JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid AND p.pubname = %s
                JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
                JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace ORDER BY 1, 2"""
        with translated("reading the publication"):
            return [(schema, name) for schema, name in self._conn.execute(command, (publication,)).fetchall()]

    def tables_named(self, names: Sequence[tuple[str, str]]) -> list[TableFacts]:
        """Tables by (schema, name), published or not; those that do not exist are left out."""
        return self._load(
            "(n.nspname::text, c.relname::text) IN (SELECT * FROM ROWS FROM "
            "(pg_catalog.unnest(%(schemas)s::text[]), pg_catalog.unnest(%(names)s::text[])))",
            publication="",
            schemas=[schema for schema, _ in names],
            names=[name for _, name in names],
        )

    def sizes(self, oids: Sequence[int]) -> dict[int, int | None]:
        """By oid, about how many bytes each table has, its partitions and large values included: as
        counted by the last VACUUM or ANALYZE, None before the first of them. Waits for no lock.
        """
        command = """
            WITH RECURSIVE parts (root, oid) AS (
                SELECT o, o FROM pg_catalog.unnest(%s::oid[]) o
                UNION ALL
                SELECT p.root, i.inhrelid FROM parts p JOIN pg_catalog.pg_inherits i ON i.inhparent = p.oid
            )
            SELECT p.root::int8, CASE WHEN NOT pg_catalog.bool_or(c.reltuples < 0 AND c.relkind <> 'p')
                THEN SUM(c.relpages::int8 + COALESCE(t.relpages, 0))::int8
                * pg_catalog.current_setting('block_size')::int8 END
            FROM parts p JOIN pg_catalog.pg_class c ON c.oid = p.oid
                LEFT JOIN pg_catalog.pg_class t ON t.oid = c.reltoastrelid
            GROUP BY p.root"""
        with translated("reading the sizes of tables"):
            return dict(self._conn.execute(command.encode(), (list(oids),)).fetchall())

    def table_names(self) -> list[tuple[str, str]]:
        """(schema, name) of every table that a publication could carry: ordinary and partitioned
        ones, without partitions and the server's own.
        """
        command = """
            SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c
                JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition AND c.oid >= 16384
              AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' ORDER BY 1, 2"""
        with translated("reading the names of tables"):
            return [(schema, name) for schema, name in self._conn.execute(command.encode()).fetchall()]

    def not_publishable(self) -> list[tuple[str, str, str]]:
        """(schema, name, kind) of the tables that no publication can carry: `foreign` and
        `unlogged` ones, without partitions and the server's own.
        """
        command = """
            SELECT n.nspname::text, c.relname::text, CASE WHEN c.relkind = 'f' THEN 'foreign' ELSE 'unlogged' END
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE (c.relkind = 'f' OR c.relkind IN ('r', 'p') AND c.relpersistence = 'u') AND NOT c.relispartition
                AND c.oid >= 16384
              AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' ORDER BY 1, 2"""
        with translated("reading the names of tables"):
            return [(schema, name, kind) for schema, name, kind in self._conn.execute(command.encode()).fetchall()]

    def wal_end(self) -> int:
        """The server's position now: every commit that was confirmed to its client ended at or
        before it.
        """
        with translated("reading the WAL position"):
            row = self._conn.execute(f"SELECT {WAL_END}".encode()).fetchone()
        assert row is not None
        return lsn.parse(row[0])

    def visible(self) -> Visible:
        """Which transactions a look sees that begins now."""
        with translated("asking which transactions can be seen"):
            row = self._conn.execute(
                b"SELECT pg_catalog.pg_snapshot_xmax(s)::text::int8, ARRAY(SELECT x::text::int8 FROM "
                b"pg_catalog.pg_snapshot_xip(s) x) FROM pg_catalog.pg_current_snapshot() s"
            ).fetchone()
        assert row is not None
        return Visible(row[0], frozenset(row[1]))

    def close(self) -> None:
        """Closes the session. May be called again."""
        self._conn.close()

    def _load(self, condition: str, **parameters: Any) -> list[TableFacts]:
        since_15 = self._version >= 150000
        command = _TABLES % {
            "condition": condition,
            "sent": sent_sql(self._version),
            "parts_of_type": PARTS_OF_TYPE,
            "types_of_names": f"'{{{', '.join(map(str, sorted(NAMES)))}}}'::int8[]",
            "attnames": _ATTNAMES if since_15 else "NULL::jsonb",
        }
        with translated("reading the catalog"):
            rows = self._conn.execute(command.encode(), parameters).fetchall()
        return [self._facts(*row) for row in rows]

    def _facts(
        self, table: dict[str, Any], columns: _Rows, children: _Rows, details: list[tuple[str, str, str, bool]] | None
    ) -> TableFacts:
        live = tuple(ColumnFacts(**column) for column in columns or ())
        lists = ("identity_columns", "levels", "attached", "missing")
        leaves = tuple(
            ChildFacts(**{**child, **{name: tuple(child[name] or ()) for name in lists}}) for child in children or ()
        )
        listed = table.pop("attnames")
        memberships = tuple(table.pop("memberships") or ())
        former_leaves = tuple(table.pop("former_leaves") or ())
        ancestors = tuple(table.pop("ancestors") or ())
        relfilenode = table.pop("relfilenode") or 0
        return TableFacts(
            **table,
            memberships=memberships,
            former_leaves=former_leaves,
            ancestors=ancestors,
            relfilenode=storage_of(leaves) if table["relkind"] == "p" else relfilenode,
            columns=live,
            children=leaves,
            published_columns=None if listed is None else tuple(listed),
            type_details=tuple(TypeDetail(*detail) for detail in details or ()),
        )


_ATTNAMES = """(SELECT pg_catalog.jsonb_agg(a.attname ORDER BY a.attnum) FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped
              AND CASE WHEN r.prattrs IS NULL THEN a.attgenerated = '' OR (p.generated AND a.attgenerated = 's')
                  ELSE a.attnum = ANY (r.prattrs) END)"""
"""Since PostgreSQL 15; 14 has neither whole schemas nor filters nor lists."""

# A column that was inherited from its first row version on proves that its table was made as a
# partition, and empty: ATTACH and DETACH make another version. A version is a transaction and a
# command of it. Where xmax is set (by an update that rolled back) the command is that of the
# update, and proves nothing.
#
# What the server's functions look up in its cache may be newer than the rows of this query. So they say
# nothing here of how a table is stored, and NULL of a right means that its object is gone meanwhile.
#
# No part of this waits for a lock on a table, which pg_publication_tables, pg_table_size and
# pg_partition_tree would: an ALTER TABLE that takes an hour on one table must not keep the decoder
# from asking about another.
_TABLES = """
WITH RECURSIVE %(sent)s
), base (oid, type_oid, typmod, depth) AS (
    SELECT t.oid, t.typbasetype, t.typtypmod, 1 FROM pg_catalog.pg_type t WHERE t.typtype = 'd'
    UNION ALL
    SELECT b.oid, t.typbasetype, CASE WHEN b.typmod = -1 THEN t.typtypmod ELSE b.typmod END, b.depth + 1
    FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type_oid WHERE t.typtype = 'd'
), resolved AS (
    SELECT DISTINCT ON (oid) oid, type_oid, typmod FROM base ORDER BY oid, depth DESC
)
SELECT
    pg_catalog.jsonb_build_object(
        'oid', c.oid::int8, 'schema', n.nspname, 'name', c.relname, 'relkind', c.relkind,
        'relpersistence', c.relpersistence,
        'replica_identity', c.relreplident, 'relfilenode', c.relfilenode::int8,
        'role', CURRENT_USER, 'schema_usable', COALESCE(pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE'), true),
        'policies_apply', pg_catalog.row_security_active(c.oid),
        'publication', %%(publication)s::text, 'is_partition', c.relispartition,
        'ancestors', (SELECT pg_catalog.jsonb_agg(an.nspname || '.' || ac.relname ORDER BY ac.oid) FROM lineage l
            JOIN pg_catalog.pg_class ac ON ac.oid = l.ancestor
            JOIN pg_catalog.pg_namespace an ON an.oid = ac.relnamespace WHERE l.oid = c.oid),
        'row_filter', CASE WHEN p.has_filter THEN p.entry::text END, 'removals', COALESCE((SELECT x.removals
            FROM exposed x WHERE x.oid = c.oid), -1),
        'attnames', %(attnames)s,
        'has_column_list', COALESCE(p.has_list, false),
        'publishes', COALESCE(p.publishes, ''),
        'memberships', m.spelled, 'former_leaves', CASE WHEN c.relkind = 'p' AND p.oid IS NOT NULL THEN (
            SELECT pg_catalog.jsonb_agg(w.oid || ':' || w.version ORDER BY w.oid) FROM written_anew w,
                (SELECT pg_catalog.array_agg(a.attname) AS names FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) own
            WHERE w.names @> own.names OR w.names <@ own.names) END,
        'attributes', c.relnatts, 'toast', c.reltoastrelid::int8, 'primary_key', COALESCE(
            (SELECT k.oid FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p')::int8, 0),
        'publication_altered', COALESCE((SELECT pub.altered FROM pub), ''),
        'estimated_rows', GREATEST(CASE WHEN c.relkind = 'p' THEN
            (SELECT SUM(GREATEST(leaf.reltuples, 0)) FROM lineage l JOIN pg_catalog.pg_class leaf ON leaf.oid = l.oid
             WHERE l.ancestor = c.oid AND leaf.relkind <> 'p')
            ELSE c.reltuples END, 0)::int8),
    (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
        'name', a.attname, 'attnum', a.attnum, 'type_oid', a.atttypid::int8, 'typmod', a.atttypmod,
        'base_type_oid', COALESCE(d.type_oid, a.atttypid)::int8,
        'base_typmod', CASE WHEN d.oid IS NULL THEN a.atttypmod ELSE d.typmod END,
        'type_name', pg_catalog.format_type(a.atttypid, a.atttypmod),
        'holds_names', a.atttypid::int8 = ANY (%(types_of_names)s) OR a.atttypid >= 16384 AND EXISTS (
            WITH RECURSIVE used (oid) AS (
                SELECT a.atttypid
                UNION
                SELECT x.oid FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.oid CROSS JOIN LATERAL (
                    %(parts_of_type)s
                ) x (oid))
            SELECT 1 FROM used WHERE used.oid::int8 = ANY (%(types_of_names)s)),
        'spelled_twice', f.proname = 'seg_out' OR pg_catalog.getdatabaseencoding() IN ('EUC_JP', 'EUC_TW') AND (
            a.attcollation <> 0 OR COALESCE(d.type_oid, a.atttypid) IN (3802, 3807)
            OR (COALESCE(d.type_oid, a.atttypid) >= 16384 AND f.proname <> 'enum_out')),
        'output_function', pg_catalog.quote_ident(fn.nspname) || '.' || pg_catalog.quote_ident(f.proname),
        'in_primary_key', COALESCE(pk.indimmediate AND a.attnum = ANY (pk.indkey[:pk.indnkeyatts - 1]), false),
        'in_identity', CASE c.relreplident WHEN 'f' THEN true WHEN 'n' THEN false
            WHEN 'i' THEN COALESCE(a.attnum = ANY (ri.indkey[:ri.indnkeyatts - 1]), false)
            ELSE COALESCE(pk.indimmediate AND a.attnum = ANY (pk.indkey[:pk.indnkeyatts - 1]), false) END,
        'not_null', a.attnotnull AND NOT (c.relreplident = 'i' AND EXISTS (SELECT 1 FROM pg_catalog.pg_constraint nn
            WHERE nn.conrelid = c.oid AND nn.contype = 'n' AND nn.conkey[1] = a.attnum AND NOT nn.convalidated)),
        'generated', a.attgenerated, 'has_default', a.atthasdef OR a.attidentity <> '',
        'missing', CASE WHEN NOT a.atthasmissing THEN NULL
            WHEN a.attmissingval::text LIKE '{"%%%%' THEN (a.attmissingval::text::text[])[1]
            ELSE pg_catalog.substr(a.attmissingval::text, 2, pg_catalog.length(a.attmissingval::text) - 2) END,
        'xmin', a.xmin::text::int8, 'storable_out_of_line', a.attlen = -1 AND a.attstorage <> 'p',
        'selectable', COALESCE(pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT'), true)) ORDER BY a.attnum)
     FROM pg_catalog.pg_attribute a
     JOIN pg_catalog.pg_type ty ON ty.oid = a.atttypid
     JOIN pg_catalog.pg_proc f ON f.oid = ty.typoutput JOIN pg_catalog.pg_namespace fn ON fn.oid = f.pronamespace
     LEFT JOIN resolved d ON d.oid = a.atttypid
     LEFT JOIN pg_catalog.pg_index pk ON pk.indrelid = c.oid AND pk.indisprimary
     LEFT JOIN pg_catalog.pg_index ri ON ri.indrelid = c.oid AND ri.indisreplident
     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
        'oid', l.oid::int8, 'schema', ln.nspname, 'name', l.relname, 'relkind', l.relkind,
        'relpersistence', l.relpersistence,
        'replica_identity', l.relreplident, 'relfilenode', l.relfilenode::int8,
        'identity_columns', (SELECT pg_catalog.array_agg(a.attname::text ORDER BY a.attname) FROM pg_catalog.pg_index i
            JOIN pg_catalog.pg_attribute a ON a.attrelid = l.oid AND a.attnum = ANY (i.indkey[:i.indnkeyatts - 1])
            WHERE i.indrelid = l.oid AND CASE l.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate WHEN 'i'
                THEN i.indisreplident ELSE false END),
        'missing', (SELECT pg_catalog.array_agg(a.attname::text) FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = l.oid AND a.atthasmissing),
        'version', l.xmin::text, 'settings', pg_catalog.md5(pg_catalog.concat_ws('|', l.relacl::text, l.relowner,
            l.reloptions::text,
            l.relhastriggers, l.relhasrules, l.relname, l.relnamespace, l.relnatts, l.relchecks, l.relrowsecurity,
                l.relforcerowsecurity)),
        'levels', t.levels, 'attached', (SELECT pg_catalog.array_agg(i.level) FROM inherited i
            WHERE i.level = ANY (t.levels) AND NOT EXISTS (
                SELECT 1 FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_attribute s ON s.attrelid = a.attrelid
                    AND s.attnum = -1
                WHERE a.attrelid = i.inhrelid AND a.attnum > 0 AND a.attinhcount > 0 AND a.xmax::text = '0'
                  AND (a.xmin::text, a.cmin::text) = (s.xmin::text, s.cmin::text)))) ORDER BY l.oid)
     FROM lineage t JOIN pg_catalog.pg_class l ON l.oid = t.oid
     JOIN pg_catalog.pg_namespace ln ON ln.oid = l.relnamespace
     WHERE c.relkind = 'p' AND t.ancestor = c.oid AND l.relkind <> 'p'),
    (WITH RECURSIVE used (oid) AS (
        SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
            AND NOT a.attisdropped
        UNION
        SELECT x.oid FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.oid CROSS JOIN LATERAL (
            %(parts_of_type)s
        ) x (oid))
     SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(detail.key, detail.spelling, detail.version,
         detail.original) ORDER BY detail.key) FROM (
        SELECT 'label ' || e.enumtypid::text || ' ' || e.oid::text, e.enumlabel::text, e.xmin::text,
            e.xmax::text = '0' AND t.xmax::text = '0' AND (e.xmin::text, e.cmin::text) = (t.xmin::text, t.cmin::text)
        FROM used JOIN pg_catalog.pg_enum e ON e.enumtypid = used.oid JOIN pg_catalog.pg_type t ON t.oid = used.oid
        UNION ALL
        SELECT 'label ' || t.oid::text, '', '', true
        FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid AND t.typtype = 'e'
        UNION ALL
        SELECT 'attributes ' || t.oid::text,
            COALESCE(pg_catalog.string_agg(a.attnum || ' ' || a.atttypid || ' ' || a.atttypmod, ', '
                ORDER BY a.attnum) FILTER (WHERE NOT a.attisdropped), ''),
            pg_catalog.string_agg(a.xmin::text, ', ' ORDER BY a.attnum),
            pg_catalog.bool_and(a.xmax::text = '0' AND t.xmax::text = '0'
                AND (a.xmin::text, a.cmin::text) = (t.xmin::text, t.cmin::text))
        FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid AND t.typtype = 'c'
        JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 GROUP BY t.oid
     ) detail (key, spelling, version, original))
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN published p ON p.oid = c.oid LEFT JOIN pg_catalog.pg_publication_rel r ON r.oid = p.entry
    LEFT JOIN (SELECT s.oid, pg_catalog.jsonb_agg(s.spelled ORDER BY s.spelled) AS spelled FROM memberships s
        GROUP BY s.oid) m ON m.oid = c.oid
WHERE %(condition)s
ORDER BY n.nspname, c.relname
"""
