"""Kinds of findings about the publication and its tables."""

from sluice.findings.kind import Kind, Step, kind

TABLES: tuple[Kind, ...] = (
    kind(
        "publication.missing",
        "ci",
        Step.PUBLICATION,
        "the publication does not exist",
        "`sluice setup` creates it if the role may; otherwise the owner of the tables must create it",
    ),
    kind(
        "publication.operations",
        "ci",
        Step.PUBLICATION,
        "the publication leaves out a kind of change: the lake would differ without notice",
        "publish insert, update, delete and truncate; set `source.accept_missing` if truncate or "
        "delete is left out on purpose",
    ),
    kind(
        "publication.empty",
        "c",
        Step.PUBLICATION,
        "the publication has none of the tables that `source.tables` asks for",
        "add tables to it",
    ),
    kind(
        "publication.lacks_tables",
        "ci",
        Step.PUBLICATION,
        "the publication lacks tables: tables that `source.tables` names (critical), tables that match one of its "
        "patterns, or tables that were removed",
        "add them to it; do nothing if this is intended",
    ),
    kind(
        "publication.partitions",
        "w",
        Step.PUBLICATION,
        "partitions are published separately: each becomes its own table in the lake",
        "set `publish_via_partition_root = true`, unless this is intended",
    ),
    kind(
        "tables.no_match", "c", Step.ELSEWHERE, "a pattern of `source.tables` matches no table", "correct the pattern"
    ),
    kind(
        "schema.reserved",
        "c",
        Step.TABLES,
        "the lake reserves the schema's name",
        "rename it, or leave its tables out",
    ),
    kind(
        "table.no_identity",
        "c",
        Step.TABLES,
        "the source refuses UPDATE and DELETE of a published table without a replica identity",
        "add a primary key, or set REPLICA IDENTITY FULL",
    ),
    kind(
        "table.no_key",
        "w",
        Step.TABLES,
        "rows have no key: they are matched as a whole, which is slow",
        "add a primary key",
    ),
    kind(
        "table.identity_not_published",
        "c",
        Step.PUBLICATION,
        "the publication does not send columns that identify rows: its column list leaves them out, or they are "
        "generated",
        "add them to the list; if they are generated, identify rows by an index without them, or publish them "
        "(PostgreSQL 18)",
    ),
    kind(
        "table.identity_nullable",
        "c",
        Step.TABLES,
        "a column that identifies rows may be NULL: its NOT NULL constraint is NOT VALID",
        "correct the rows, and validate the constraint",
    ),
    kind(
        "table.identity_by_name",
        "c",
        Step.TABLES,
        "rows are identified by a column whose text is the name of another object (`regclass`, `regproc`, ...): it "
        "changes when the object is renamed",
        "identify rows by another column, or change the type to `oid`",
    ),
    kind(
        "table.identity_spelled_twice",
        "c",
        Step.TABLES,
        "rows are identified by values of which several have one text: text in a database whose encoding (EUC_JP, "
        "EUC_TW) has several codes for some characters that are one in UTF-8, or the type `seg`, which is printed with "
        "six digits. Two rows of the source could be one in the lake",
        "identify rows by an index without such columns, such as one of a new identity column, or use a database with "
        "encoding UTF8. Values are not looked at: text that is all ASCII now does not help",
    ),
    kind(
        "table.filter_hides_values",
        "w",
        Step.TABLES,
        "an update that moves a row into the row filter may arrive without its large values: the table is then read "
        "again",
        "set REPLICA IDENTITY FULL; do nothing if rows do not move into the filter",
    ),
    kind(
        "table.row_filter",
        "i",
        Step.PUBLICATION,
        "the lake holds the rows that match the publication's filter",
        "do nothing if this is intended",
    ),
    kind("table.no_columns", "w", Step.TABLES, "the table has no columns", "leave it out"),
    kind(
        "table.path",
        "c",
        Step.TABLES,
        "two tables would have the same path in the lake, or paths that differ only by case",
        "rename one, or leave it out",
    ),
    kind(
        "table.long_name",
        "c",
        Step.TABLES,
        "the table's name or its schema's is too long for a folder of the lake",
        "choose a shorter name, or leave it out",
    ),
    kind(
        "table.unlogged",
        "cw",
        Step.TABLES,
        "an unlogged table cannot be carried: its changes are not in the WAL",
        "run SET LOGGED, or leave it out",
    ),
    kind(
        "table.foreign",
        "cw",
        Step.TABLES,
        "a foreign table cannot be carried: its changes are in another server's WAL",
        "carry it from its own server",
    ),
    kind(
        "table.not_readable",
        "c",
        Step.RIGHTS,
        "the role cannot read the table, which its snapshot needs",
        "grant USAGE on the schema and SELECT on the table",
    ),
    kind(
        "table.row_security",
        "c",
        Step.RIGHTS,
        "row-level security applies to the role: a snapshot would miss rows, so it stops",
        "grant BYPASSRLS to the role, or leave the table out",
    ),
    kind(
        "table.read_failed",
        "c",
        Step.ELSEWHERE,
        "reading one row failed, but not because of missing privileges",
        "correct what the SQLSTATE names",
    ),
    kind(
        "table.locked",
        "w",
        Step.SESSIONS,
        "the table is locked, so reading it could not be tested",
        "run `check` again when the lock is gone",
    ),
    kind("column.reserved", "c", Step.TABLES, "the lake reserves the column's name", "rename it"),
    kind(
        "column.case",
        "c",
        Step.TABLES,
        "the names of two columns differ only by case, which Delta does not allow",
        "rename one",
    ),
    kind(
        "column.rule_unknown",
        "c",
        Step.ELSEWHERE,
        "a column rule names a column that its table does not have and never had: the column that it "
        "should keep out of the lake may have another name",
        "use the column's name as the database spells it",
    ),
    kind(
        "column.rule_on_key",
        "c",
        Step.ELSEWHERE,
        "a column that identifies rows has a rule that would make different rows equal",
        "use `hash` or `include` for the column, or choose another primary key or replica identity",
    ),
    kind(
        "column.rule_binary",
        "c",
        Step.ELSEWHERE,
        "`source.binary` is true, and a column rule needs the text of values, which cannot be made exactly from their "
        "binary form",
        "set `source.binary: false`, or exclude or mask the column",
    ),
    kind(
        "table.rules_left",
        "c",
        Step.ELSEWHERE,
        "the table was renamed, and its column rules are configured under its former name",
        "configure the same rules under its new name in `tables`",
    ),
    kind(
        "table.rules_unmatched",
        "c",
        Step.ELSEWHERE,
        "column rules are configured for a table that is not carried",
        "use the table's name as the database spells it, or remove the rules",
    ),
    kind(
        "table.settings_unmatched",
        "w",
        Step.ELSEWHERE,
        "`tables` has settings for a table that is not carried, so they have no effect",
        "use the table's name as the database spells it, or remove the settings",
    ),
    kind(
        "target.key",
        "c",
        Step.ELSEWHERE,
        "a history, or a mirror with soft deletes, of a table without a key: the lake table would be stale",
        "give the table a primary key or a replica identity index, or choose another kind of lake table",
    ),
    kind(
        "target.track",
        "c",
        Step.ELSEWHERE,
        "the history tracks a column that its table does not have, or that is excluded from the lake: "
        "the lake table would turn stale",
        "use the column's name as the database spells it",
    ),
    kind(
        "target.partition_by",
        "c",
        Step.ELSEWHERE,
        "the lake table cannot be partitioned by a column, because it does not have the column or the "
        "column has another type. The next snapshot would fail",
        "use columns of the types date, integer and boolean that the lake table has",
    ),
    kind(
        "target.properties",
        "c",
        Step.ELSEWHERE,
        "a column has a name that a lake table without column mapping cannot have",
        "rename the column, exclude it by a column rule, or remove `delta.columnMapping.mode` from this target",
    ),
    kind(
        "target.cluster_by",
        "cw",
        Step.ELSEWHERE,
        "the files of the lake table cannot be clustered by a column, because it does not have the "
        "column (a warning if it had it once) or Delta has no bounds of its values. Rows are not "
        "affected",
        "use columns among the first 32 of the lake table",
    ),
    kind(
        "target.changelog",
        "i",
        Step.ELSEWHERE,
        "a new snapshot replaces a changelog, which loses the changes that it has, and Sluice takes one by itself "
        "after a change that cannot be followed",
        "set `on_change: stop` for the table if you need these changes, and copy the lake table before a resync",
    ),
    kind(
        "column.generated",
        "w",
        Step.PUBLICATION,
        "generated columns are not sent, so the lake will not have them",
        "PostgreSQL 18 can publish stored ones",
    ),
    kind(
        "column.generated_in_identity",
        "c",
        Step.PUBLICATION,
        "generated columns that are not published are part of the replica identity: the source refuses UPDATE and "
        "DELETE",
        "publish them, or choose another replica identity",
    ),
    kind(
        "column.binary",
        "c",
        Step.ELSEWHERE,
        "the column cannot be read exactly in binary form",
        "set `source.binary: false`, or use a column list without it",
    ),
    kind(
        "partition.rules",
        "c",
        Step.ELSEWHERE,
        "a partition is published under its own name and has no column rules, but its partitioned table has some",
        "configure rules for the partition, or set `publish_via_partition_root = true`",
    ),
    kind(
        "partition.not_logged",
        "c",
        Step.TABLES,
        "a partition is unlogged or foreign: its changes are not in the WAL",
        "run SET LOGGED, or detach it",
    ),
    kind(
        "partition.identity",
        "c",
        Step.TABLES,
        "a partition's replica identity differs from that of its root: old rows would contain wrong NULLs",
        "give it the replica identity of the root",
    ),
)
