"""What `check` can find: every code with its meaning and its remedy, and the value that one finding
is.

Invariant: a code that exists is listed here, for scripts and people depend on codes; a finding with
another one cannot be made. Standard library only, so that the side that sees PostgreSQL and the
side that sees Spark say what they find in one form. docs/findings.md is made from the list.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")


class Step(IntEnum):
    """Where the SQL of a finding stands in a script that works when it is run from top to bottom."""

    RESTART = 1
    RIGHTS = 2
    TABLES = 3
    PUBLICATION = 4
    SETTINGS = 5
    SLOT = 6
    SESSIONS = 7
    ELSEWHERE = 8


@dataclass(frozen=True, slots=True)
class Kind:
    """One code: how grave it can be, what it means, what fixes it."""

    code: str
    severities: tuple[Severity, ...]
    step: Step
    meaning: str
    remedy: str


def _kind(code: str, severities: str, step: Step, meaning: str, remedy: str) -> Kind:
    letters: dict[str, Severity] = {"c": "critical", "w": "warning", "i": "info"}
    return Kind(code, tuple(letters[letter] for letter in severities), step, meaning, remedy)


KINDS: tuple[Kind, ...] = (
    _kind(
        "pipeline.lost",
        "c",
        Step.ELSEWHERE,
        "the pipeline has a manifest and cannot go on from its slot: `run` would end with 7, and so does `check`",
        "`sluice slot show` names the case; the tables need a new snapshot under a new slot",
    ),
    _kind(
        "pipeline.problem",
        "cwi",
        Step.ELSEWHERE,
        "a problem of the pipeline as it is, by its code in docs/problems.md and as severe as there; "
        "`info` where running it is all that is missing",
        "what the problem says",
    ),
    _kind(
        "source.connect",
        "c",
        Step.ELSEWHERE,
        "the source cannot be reached, or refuses the connection",
        "`source.dsn`, the network, the role, pg_hba.conf",
    ),
    _kind(
        "source.tls",
        "cw",
        Step.ELSEWHERE,
        "the server is on another machine and nothing proves who it is: who sits in between can read "
        "the password and change rows",
        "`sslmode=verify-full` with `sslrootcert`; `source.allow_insecure: true` only where the "
        "network itself is trusted",
    ),
    _kind("server.version", "c", Step.ELSEWHERE, "the server is older than PostgreSQL 14", "upgrade it"),
    _kind(
        "server.untested",
        "w",
        Step.ELSEWHERE,
        "the server is of a major that this release of Sluice was not tested with",
        "look for a newer Sluice",
    ),
    _kind(
        "server.minor",
        "w",
        Step.RESTART,
        "a minor release in which logical decoding can lose changes",
        "update to the latest minor release",
    ),
    _kind(
        "server.wal_level", "c", Step.RESTART, "WAL does not hold what logical decoding needs", "`wal_level = logical`"
    ),
    _kind(
        "server.encoding",
        "cw",
        Step.ELSEWHERE,
        "the database's encoding can hold bytes that have no UTF-8 form",
        "a database with encoding UTF8",
    ),
    _kind(
        "server.standby",
        "cw",
        Step.SETTINGS,
        "the server is a standby that cannot decode, or whose slot its primary can spoil",
        "the primary, or PostgreSQL 16 with `hot_standby_feedback = on`",
    ),
    _kind(
        "server.clock",
        "w",
        Step.ELSEWHERE,
        "the clocks of source and pipeline differ: lag in seconds is off by that",
        "synchronise both clocks",
    ),
    _kind(
        "server.synchronous",
        "w",
        Step.SETTINGS,
        "commits on the source would wait for this pipeline",
        "name the standbys that are meant in `synchronous_standby_names`",
    ),
    _kind(
        "server.slots",
        "c",
        Step.RESTART,
        "no replication slot is free",
        "raise `max_replication_slots`, or drop slots that nobody uses",
    ),
    _kind(
        "server.senders",
        "c",
        Step.RESTART,
        "too few WAL senders are free for the stream and a snapshot beside it",
        "raise `max_wal_senders`",
    ),
    _kind(
        "server.keep_size",
        "cw",
        Step.SETTINGS,
        "the WAL kept for slots has no limit (the disk can fill) or one that a short outage uses up",
        "`max_slot_wal_keep_size` as large as the disk can spare",
    ),
    _kind(
        "server.idle_slots",
        "w",
        Step.SETTINGS,
        "slots are invalidated when they are idle for a while",
        "`idle_replication_slot_timeout` longer than any planned stop, or 0",
    ),
    _kind(
        "server.sender_timeout",
        "w",
        Step.SETTINGS,
        "a short stall ends the stream, or a vanished client is never noticed",
        "`wal_sender_timeout = 60s`",
    ),
    _kind(
        "server.synchronized_standbys",
        "w",
        Step.SETTINGS,
        "the pipeline can be ahead of the standby that would be promoted",
        "name the standby's physical slot in `synchronized_standby_slots`",
    ),
    _kind(
        "server.prepared_transaction",
        "w",
        Step.SESSIONS,
        "a prepared transaction stays open: creating a slot, and each snapshot, waits for it",
        "commit it or roll it back",
    ),
    _kind(
        "server.long_transaction",
        "w",
        Step.SESSIONS,
        "a transaction has been open for long: creating a slot, and each snapshot, waits for it",
        "let it end, or end it",
    ),
    _kind(
        "role.replication",
        "c",
        Step.RIGHTS,
        "the role cannot open a replication connection",
        "the role's REPLICATION attribute, a line of pg_hba.conf, no pooler in between",
    ),
    _kind(
        "role.superuser",
        "i",
        Step.RIGHTS,
        "the role is a superuser, which is more than it needs",
        "a role of its own: deploy/postgres/grants.sql",
    ),
    _kind(
        "role.statistics",
        "i",
        Step.RIGHTS,
        "the role cannot see how long other sessions' transactions have been open",
        "`GRANT pg_read_all_stats`, which also shows it their statements",
    ),
    _kind(
        "slot.missing", "i", Step.SLOT, "the slot does not exist yet", "`sluice setup`, or the first run, creates it"
    ),
    _kind(
        "slot.wrong",
        "c",
        Step.SLOT,
        "a slot of this name is of another plugin or database",
        "another name in `source.slot`",
    ),
    _kind(
        "slot.invalidated",
        "c",
        Step.SLOT,
        "the slot is lost: the server removed WAL or rows that it needed",
        "drop it and resync the tables",
    ),
    _kind(
        "slot.unreserved",
        "c",
        Step.SETTINGS,
        "WAL that the slot needs is about to be removed",
        "start the pipeline now, or raise `max_slot_wal_keep_size`",
    ),
    _kind("slot.active", "i", Step.SLOT, "a process streams from the slot now", "nothing, if it is this pipeline's"),
    _kind(
        "slot.two_phase",
        "c",
        Step.SLOT,
        "the slot's two_phase flag is not what the configuration says",
        "`sluice setup` where the server can change it",
    ),
    _kind(
        "slot.failover",
        "w",
        Step.SLOT,
        "the server has a standby, and the slot would not survive a failover to it",
        "the slot's failover flag (PostgreSQL 17)",
    ),
    _kind(
        "slot.synced",
        "c",
        Step.SLOT,
        "the slot is a copy that this standby keeps of its primary's: nobody can stream from it",
        "the primary, or another `source.slot`",
    ),
    _kind(
        "publication.missing",
        "ci",
        Step.PUBLICATION,
        "the publication does not exist",
        "`sluice setup` creates it if the role may; else its owner does",
    ),
    _kind(
        "publication.operations",
        "c",
        Step.PUBLICATION,
        "the publication leaves out a kind of change: the lake would differ without notice",
        "publish insert, update, delete and truncate",
    ),
    _kind(
        "publication.empty",
        "c",
        Step.PUBLICATION,
        "the publication has none of the tables that are asked for",
        "add tables to it",
    ),
    _kind(
        "publication.lacks_tables",
        "c",
        Step.PUBLICATION,
        "tables that `source.tables` names are not in the publication",
        "add them to it",
    ),
    _kind(
        "publication.partitions",
        "w",
        Step.PUBLICATION,
        "partitions are published one by one: each becomes a table of its own in the lake",
        "`publish_via_partition_root = true`, unless that is meant",
    ),
    _kind(
        "tables.no_match", "c", Step.ELSEWHERE, "a pattern of `source.tables` matches no table", "correct the pattern"
    ),
    _kind(
        "schema.reserved",
        "c",
        Step.TABLES,
        "the lake needs the schema's name for itself",
        "rename it, or leave its tables out",
    ),
    _kind(
        "table.no_identity",
        "c",
        Step.TABLES,
        "the source refuses UPDATE and DELETE of a published table without a replica identity",
        "a primary key, or REPLICA IDENTITY FULL",
    ),
    _kind(
        "table.no_key",
        "w",
        Step.TABLES,
        "rows have no key: they are matched as a whole, which is slow",
        "a primary key",
    ),
    _kind(
        "table.identity_not_published",
        "c",
        Step.PUBLICATION,
        "the publication's column list leaves out columns by which rows are found",
        "add them to the list",
    ),
    _kind(
        "table.filter_hides_values",
        "c",
        Step.TABLES,
        "a row that comes into the row filter by an update would arrive without its large values",
        "REPLICA IDENTITY FULL",
    ),
    _kind(
        "table.row_filter",
        "i",
        Step.PUBLICATION,
        "the lake holds the rows that match the publication's filter",
        "nothing, if that is meant",
    ),
    _kind("table.no_columns", "w", Step.TABLES, "the table has no columns", "leave it out"),
    _kind(
        "table.path",
        "c",
        Step.TABLES,
        "two tables would have one path in the lake on stores that ignore case",
        "rename one, or leave it out",
    ),
    _kind(
        "table.long_name",
        "c",
        Step.TABLES,
        "the table's name or its schema's is too long for a folder of the lake",
        "a shorter name, or leave it out",
    ),
    _kind(
        "table.unlogged",
        "cw",
        Step.TABLES,
        "an unlogged table cannot be carried: its changes are not in the WAL",
        "SET LOGGED, or leave it out",
    ),
    _kind(
        "table.foreign",
        "cw",
        Step.TABLES,
        "a foreign table cannot be carried: its changes are in another server's WAL",
        "carry it from its own server",
    ),
    _kind(
        "table.not_readable",
        "c",
        Step.RIGHTS,
        "the role cannot read the table, which its snapshot needs",
        "GRANT USAGE on the schema, SELECT on the table",
    ),
    _kind(
        "table.row_security",
        "c",
        Step.RIGHTS,
        "row level security applies to the role: a snapshot would miss rows, and therefore stops",
        "BYPASSRLS for the role, or leave the table out",
    ),
    _kind(
        "table.read_failed",
        "c",
        Step.ELSEWHERE,
        "reading one row failed for another reason than rights",
        "what the SQLSTATE says",
    ),
    _kind(
        "table.locked",
        "w",
        Step.SESSIONS,
        "the table is locked, so that reading it could not be tried",
        "run `check` again when the lock is gone",
    ),
    _kind("column.reserved", "c", Step.TABLES, "the lake needs the column's name for itself", "rename it"),
    _kind(
        "column.case", "c", Step.TABLES, "two columns differ by case alone, which Delta does not allow", "rename one"
    ),
    _kind(
        "column.generated",
        "w",
        Step.PUBLICATION,
        "generated columns are not sent: the lake will not have them",
        "PostgreSQL 18 can publish stored ones",
    ),
    _kind(
        "column.generated_in_identity",
        "c",
        Step.PUBLICATION,
        "unpublished generated columns are part of the identity: the source refuses UPDATE and DELETE",
        "publish them, or another identity",
    ),
    _kind(
        "column.binary",
        "c",
        Step.ELSEWHERE,
        "the column cannot be read exactly in binary form",
        "`source.binary: false`, or a column list without it",
    ),
    _kind(
        "partition.not_logged",
        "c",
        Step.TABLES,
        "a partition is unlogged or foreign: its changes are not in the WAL",
        "SET LOGGED, or detach it",
    ),
    _kind(
        "partition.identity",
        "c",
        Step.TABLES,
        "a partition's replica identity differs from its root's: old rows would hold false NULLs",
        "give it the root's",
    ),
    _kind(
        "store.reach",
        "c",
        Step.ELSEWHERE,
        "the object store cannot be reached, or refuses",
        "address, credentials, region, policy",
    ),
    _kind(
        "store.create",
        "c",
        Step.ELSEWHERE,
        "the store does not honour create-only (If-None-Match): two writers could both win",
        "another store",
    ),
    _kind("store.overwrite", "c", Step.ELSEWHERE, "the store does not return what was just written", "another store"),
    _kind(
        "store.list", "c", Step.ELSEWHERE, "the store does not list what was just written, in order", "another store"
    ),
    _kind(
        "store.multipart",
        "c",
        Step.ELSEWHERE,
        "large objects cannot be stored in parts",
        "the right to do so (s3:PutObject, s3:AbortMultipartUpload), or another store",
    ),
    _kind("store.range", "c", Step.ELSEWHERE, "parts of objects cannot be read, which Spark does", "another store"),
    _kind("store.delimiter", "c", Step.ELSEWHERE, "folders cannot be listed, which Spark does", "another store"),
    _kind(
        "store.delete",
        "cw",
        Step.ELSEWHERE,
        "objects cannot be deleted: leftovers of crashed writers stay for ever",
        "the right to delete below the prefix (deploy/object-store)",
    ),
    _kind(
        "store.bulk_delete",
        "w",
        Step.ELSEWHERE,
        "several objects cannot be deleted at once, which Spark and VACUUM do",
        "another store, or `fs.s3a.multiobjectdelete.enable: false` in `apply.conf`",
    ),
    _kind(
        "store.copy",
        "w",
        Step.ELSEWHERE,
        "objects cannot be copied within the store, which other tools do",
        "nothing: Sluice copies none",
    ),
    _kind(
        "store.etag",
        "i",
        Step.ELSEWHERE,
        "the store does not honour If-Match, which other writers of Delta tables may use",
        "nothing: Sluice does not use it",
    ),
    _kind(
        "store.clock",
        "w",
        Step.ELSEWHERE,
        "the store's clock is not ours: requests are refused when they differ by minutes",
        "synchronise this machine's clock",
    ),
    _kind(
        "store.plain", "w", Step.ELSEWHERE, "objects and requests go over the network unencrypted", "an https endpoint"
    ),
    _kind(
        "lake.java", "c", Step.ELSEWHERE, "there is no Java 17 or newer, which Spark needs", "install it, set JAVA_HOME"
    ),
    _kind(
        "lake.versions",
        "c",
        Step.ELSEWHERE,
        "Spark, Delta and Scala do not fit each other",
        "the versions of the lock file, or the image",
    ),
    _kind(
        "lake.jars",
        "c",
        Step.ELSEWHERE,
        "a jar that Spark needs is missing or is not the one that was tested",
        "`python -m sluice_spark.jars fetch`",
    ),
    _kind(
        "lake.address",
        "c",
        Step.ELSEWHERE,
        "Spark cannot use an address or an option that ingest can",
        "`spool.uri`, `lake.uri` and their options",
    ),
    _kind(
        "lake.writable",
        "c",
        Step.ELSEWHERE,
        "the lake cannot be written to",
        "the directory's rights, or the store's policy (deploy/object-store)",
    ),
    _kind(
        "lake.protocol",
        "c",
        Step.ELSEWHERE,
        "an existing Delta table uses features that this version of Delta does not support",
        "a newer Sluice, or drop the feature from the table",
    ),
    _kind(
        "lake.log_store",
        "i",
        Step.ELSEWHERE,
        "on S3 only one process at a time may commit to a Delta table",
        "run OPTIMIZE and VACUUM of these tables nowhere else",
    ),
)
"""In the order of the documentation."""

BY_CODE = {kind.code: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is one of KINDS. `object` is what it is about, `seen` what was seen there, in one
    sentence each and never with a row value or a secret.

    `fix_sql` is SQL to run, `fix_setting` a setting of the server or of Sluice to change, or other
    words on what to do; `needs_restart` says that the server must be restarted for it. With
    neither, what fixes its kind stands there, unless it only informs. `by_hand` marks SQL that
    destroys something, widens rights, or has a place to fill in: it is never run unread.
    """

    severity: Severity
    code: str
    object: str
    seen: str
    fix_sql: str = ""
    fix_setting: str = ""
    needs_restart: bool = False
    by_hand: bool = False

    def __post_init__(self) -> None:
        if self.severity not in BY_CODE[self.code].severities:
            raise ValueError(f"{self.code} is never {self.severity}")
        if self.severity != "info" and not (self.fix_sql or self.fix_setting):
            object.__setattr__(self, "fix_setting", BY_CODE[self.code].remedy.replace("`", ""))
