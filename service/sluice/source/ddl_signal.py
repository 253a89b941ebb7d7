"""The DDL signal: event triggers that put a small transactional message into the stream for each command
that may change what the catalog says of a table.

Invariant: the trigger never fails the user's command, depends on nobody's search_path or rights, and says
no SQL text, name or value. Whether its messages may be relied upon is asked of the server at each look.
Must not create anything but by `create`. (PostgreSQL: Event Triggers; Replication Management Functions.)
"""

from dataclasses import dataclass

from sluice.errors import SourceRefused
from sluice.source.catalog import Catalog
from sluice.source.sessions import Connection, translated

SCHEMA = "sluice_ddl"
_EVENTS = ("ddl_command_end", "sql_drop", "table_rewrite")
_DEFINER = "LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp"
_BODY = """
-- Says to Sluice that a command ran: one message for each, and one for each table that it writes anew. What fails
-- here never fails the command. `left` is what nobody could see any more once it is undone. Rows that are not
-- older than this transaction may be its own.
DECLARE
    said jsonb;
    objects oid[];
    own int;
BEGIN
    said := jsonb_build_object('tag', tg_tag);
    IF tg_tag IN ('COMMENT', 'SECURITY LABEL', 'REFRESH MATERIALIZED VIEW', 'REINDEX') THEN
        RETURN;
    ELSIF tg_event = 'table_rewrite' THEN
        said := said || jsonb_build_object('objects',
            jsonb_build_array(jsonb_build_array(1259, pg_event_trigger_table_rewrite_oid()::int8)));
    ELSIF tg_event = 'sql_drop' THEN
        said := said || (SELECT jsonb_build_object('objects',
                jsonb_agg(jsonb_build_array(d.classid::int8, d.objid::int8)))
            FROM (SELECT * FROM pg_event_trigger_dropped_objects() e WHERE NOT e.is_temporary LIMIT 20) d
            HAVING count(*) > 0);
        IF said IS NULL OR tg_tag NOT LIKE 'DROP %' THEN
            RETURN;  -- all of it is temporary, or ddl_command_end follows
        END IF;
    ELSE
        objects := ARRAY(SELECT e.objid FROM pg_event_trigger_ddl_commands() e
            WHERE e.objid IS NOT NULL AND e.schema_name IS DISTINCT FROM 'pg_temp');
        IF objects = '{}' AND (tg_tag LIKE 'DROP %' OR EXISTS (
                SELECT FROM pg_event_trigger_ddl_commands() e WHERE e.schema_name = 'pg_temp')) THEN
            RETURN;  -- sql_drop has said it, or all of it is temporary
        END IF;
        own := age(pg_current_xact_id()::xid);
        WITH RECURSIVE named AS (
            SELECT DISTINCT e.classid, e.objid, e.command_tag AS tag FROM pg_event_trigger_ddl_commands() e
            WHERE e.objid = ANY (objects)
        ), below (oid) AS (
            SELECT i.inhrelid FROM pg_inherits i
            WHERE (i.inhrelid = ANY (objects) OR i.inhparent = ANY (objects)) AND age(i.xmin) <= own
            UNION
            SELECT i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.oid
        ), left_behind (one) AS (
            SELECT jsonb_build_array('partition', c.oid::int8) || (
                SELECT jsonb_agg(a.relid::oid::int8) FROM pg_partition_ancestors(c.oid) a (relid))
            FROM below b JOIN pg_class c ON c.oid = b.oid WHERE c.relkind = 'r' AND c.relispartition
            UNION ALL
            SELECT jsonb_build_array('table', c.oid::int8, c.relpersistence, c.relreplident)
            FROM named n JOIN pg_class c ON c.oid = n.objid
            WHERE n.classid = 1259 AND n.tag = 'ALTER TABLE' AND c.relkind IN ('r', 'p')
            UNION ALL
            SELECT jsonb_build_array('column', a.attrelid::int8, a.attnum, a.atttypid::int8, a.atttypmod)
            FROM named n JOIN pg_attribute a ON a.attrelid = n.objid
            WHERE n.classid = 1259 AND n.tag = 'ALTER TABLE' AND a.attnum > 0 AND NOT a.attisdropped
                AND age(a.xmin) <= own
            UNION ALL
            SELECT jsonb_build_array('label', l.oid::int8,
                encode(sha256(convert_to(l.enumlabel::text, 'UTF8')), 'hex'))
            FROM named n JOIN pg_enum l ON l.enumtypid = n.objid
            WHERE n.classid = 1247 AND n.tag = 'ALTER TYPE' AND age(l.xmin) <= own
            UNION ALL
            SELECT jsonb_build_array('entry', p.oid::int8, n.objid::int8)
            FROM named n CROSS JOIN LATERAL pg_identify_object_as_address(n.classid, n.objid, 0) i
                JOIN pg_publication p ON p.pubname = i.object_args[1]
            WHERE n.classid IN (6106, 6237)
        )
        SELECT said || jsonb_strip_nulls(jsonb_build_object(
            'objects', (SELECT jsonb_agg(jsonb_build_array(n.classid::int8, n.objid::int8))
                FROM (SELECT * FROM named LIMIT 20) n),
            'left', (SELECT jsonb_agg(l.one) FROM left_behind l))) INTO said;
    END IF;
    PERFORM pg_logical_emit_message(true, 'sluice.ddl', said::text);
EXCEPTION WHEN OTHERS THEN
    RAISE LOG 'sluice_ddl.signal: %', SQLERRM;
    BEGIN
        PERFORM pg_logical_emit_message(true, 'sluice.ddl', '{}');
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
END
"""
"""1247 is the number of pg_type, 1259 of pg_class, 6106 of pg_publication_rel and 6237 of pg_publication_namespace. Its
search path is set, so that no name here is anybody else's."""


def statements() -> list[str]:
    """The SQL that makes it, once for a database, whatever pipelines it has. An object that exists already
    is refused, because somebody else may own it.
    """
    triggers = [_trigger(event) for event in _EVENTS]
    return [
        f"CREATE SCHEMA {SCHEMA}",
        f"CREATE FUNCTION {SCHEMA}.signal() RETURNS event_trigger {_DEFINER} AS $sluice${_BODY}$sluice$",
        *(f"CREATE EVENT TRIGGER {name} ON {event} EXECUTE FUNCTION {SCHEMA}.signal()" for name, event in triggers),
        *(f"ALTER EVENT TRIGGER {name} ENABLE ALWAYS" for name, _ in triggers),
    ]


def removal() -> list[str]:
    """The SQL that removes it."""
    drops = [f"DROP EVENT TRIGGER IF EXISTS {_trigger(event)[0]}" for event in _EVENTS]
    return [*drops, f"DROP FUNCTION IF EXISTS {SCHEMA}.signal()", f"DROP SCHEMA IF EXISTS {SCHEMA}"]


def _trigger(event: str) -> tuple[str, str]:
    return f"sluice_{event}", event


def create(connection: Connection) -> bool:
    """Creates all of it or nothing; False when it is there already, as this release has it. Raises SourceError."""
    seen = probe(connection)
    if seen.version and not seen.lacks:
        return False
    try:
        with translated("creating the DDL signal"), connection.transaction():
            for statement in statements():
                connection.execute(statement.encode())
    except SourceRefused as error:
        raise SourceRefused(
            str(error),
            hint="event triggers need a superuser, or the role that your provider offers for them: let "
            "that role run the SQL that `sluice setup --ddl-signal` prints. To replace an older one: "
            f"{'; '.join(removal())};",
        ) from error
    return True


@dataclass(frozen=True, slots=True)
class Seen:
    """`version` is empty where the signal is not installed, and another one whenever it was changed. `lacks` is why
    it cannot be relied upon, empty when it can. `open` are the transactions that are under way, None if nobody asked.
    """

    version: str
    lacks: str
    open: frozenset[str] | None = None


_SEEN = """
SELECT COALESCE(pg_catalog.string_agg(t.oid || ' ' || t.xmin || ' ' || f.xmin, ',' ORDER BY t.oid), ''),
    CASE WHEN pg_catalog.count(t.oid) = 0 THEN 'it is not installed'
        WHEN pg_catalog.count(DISTINCT t.evtevent) <> 3
            OR NOT pg_catalog.bool_and(t.evtenabled = 'A' AND t.evttags IS NULL)
            THEN 'one of its event triggers is missing, or not ENABLE ALWAYS'
        WHEN NOT pg_catalog.bool_and(f.prosrc = %s AND f.prosecdef
            AND f.proconfig = '{"search_path=pg_catalog, pg_temp"}')
            THEN 'its function is not that of this release of Sluice'
        WHEN NOT pg_catalog.bool_and((SELECT pg_catalog.bool_and(pg_catalog.has_function_privilege(f.proowner, e.oid,
                'EXECUTE')) FROM pg_catalog.pg_proc e WHERE e.proname = 'pg_logical_emit_message'))
            THEN 'the owner of its function may not execute pg_logical_emit_message'
        WHEN COALESCE(pg_catalog.current_setting('event_triggers', true), 'on') <> 'on' OR EXISTS (
            SELECT FROM pg_catalog.pg_db_role_setting s WHERE pg_catalog.array_to_string(s.setconfig, ' ')
                LIKE '%%event_triggers=%%' AND s.setdatabase IN (0, (SELECT d.oid FROM pg_catalog.pg_database d
                    WHERE d.datname = pg_catalog.current_database())))
            THEN 'event_triggers is off, or set for a role or database'
        WHEN pg_catalog.pg_is_in_recovery() THEN 'the source is a standby' ELSE '' END,
    CASE WHEN %s AND pg_catalog.count(t.oid) > 0 THEN ARRAY(SELECT COALESCE(l.virtualxid, l.transactionid::text)
        FROM pg_catalog.pg_locks l WHERE l.locktype IN ('virtualxid', 'transactionid') AND l.granted
        AND l.mode = 'ExclusiveLock' AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()) END
FROM pg_catalog.pg_event_trigger t JOIN pg_catalog.pg_proc f ON f.oid = t.evtfoid AND f.proname = 'signal'
    JOIN pg_catalog.pg_namespace n ON n.oid = f.pronamespace AND n.nspname = 'sluice_ddl'
"""


def probe(connection: Connection, *, with_open: bool = False) -> Seen:
    """What the server says of the signal now; `with_open` also which transactions are under way. Raises SourceError."""
    with translated("checking the DDL signal"):
        row = connection.execute(_SEEN.encode(), (_BODY, with_open)).fetchone()
    assert row is not None
    return Seen(row[0], row[1], None if row[2] is None else frozenset(row[2]))


def unseen_among(connection: Connection, xids: list[int]) -> set[int]:
    """Those of these transactions, all of which have committed, that other sessions cannot see yet: with synchronous
    replication they wait for a standby. Raises SourceError.
    """
    visible = Catalog(connection).visible()
    return {xid for xid in xids if not visible.sees(xid)}


def entries_of(connection: Connection, publication: str) -> tuple[int, set[int]]:
    """The oid of the publication, 0 when it is gone, and those of its entries and schemas. Raises SourceError."""
    kinds = ("rel", "namespace") if connection.info.server_version >= 150000 else ("rel",)
    rows = " UNION ALL ".join(
        f"SELECT oid::int8 FROM pg_catalog.pg_publication_{kind} WHERE {{}} = p.oid" for kind in kinds
    )
    rows = rows.format("prpubid", "pnpubid")
    with translated("reading the entries of the publication"):
        row = connection.execute(
            f"SELECT p.oid::int8, ARRAY({rows}) FROM pg_catalog.pg_publication p WHERE p.pubname = %s".encode(),
            (publication,),
        ).fetchone()
    return (row[0], set(row[1])) if row is not None else (0, set())
