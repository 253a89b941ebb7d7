"""Every problem that a pipeline can have: its stable code, how severe it can be, what it means,
what to do.

Invariant: scripts and alerts depend on codes, so a problem with a code that is not listed here
cannot be made. docs/problems.md is made from the list.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sluice.findings import Severity

Part = Literal["server", "slot", "ingest", "spool", "applier", "lake", "tables"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One code. `part` is the part of the pipeline that it belongs to, `runbook` the page of
    docs/runbooks that goes through its causes. Only `info` leaves a pipeline healthy.
    """

    code: str
    part: Part
    severities: tuple[Severity, ...]
    runbook: str
    meaning: str
    remedy: str


def _kind(code: str, part: Part, severities: str, runbook: str, meaning: str, remedy: str) -> Kind:
    letters: dict[str, Severity] = {"c": "critical", "w": "warning", "i": "info"}
    return Kind(code, part, tuple(letters[letter] for letter in severities), runbook, meaning, remedy)


KINDS: tuple[Kind, ...] = (
    _kind(
        "slot.lost",
        "slot",
        "c",
        "SluiceSlotLost",
        "The pipeline cannot continue from its slot: the slot is missing, invalidated, ahead of the "
        "manifest, or on another server.",
        "Do not retry. `sluice slot show` names the case. `sluice slot recreate` continues with a new "
        "slot, if that is possible; docs/operations/disasters.md has the steps.",
    ),
    _kind(
        "slot.unreserved",
        "slot",
        "c",
        "SluiceSlotEndangered",
        "The server no longer promises to keep the WAL that the slot needs.",
        "Make ingest run again at once, or raise `max_slot_wal_keep_size`.",
    ),
    _kind(
        "slot.headroom",
        "slot",
        "cw",
        "SluiceSlotEndangered",
        "Less than 40 % of `max_slot_wal_keep_size` is left; critical below 20 %. The message says for how long that "
        "lasts at the present rate. The alerts also forecast. Or the server sets no limit, and keeps more than 50 GiB "
        "for the slot: when its disk is full, the database stops.",
        "Make ingest run again, or raise `max_slot_wal_keep_size`; where it sets no limit, set one.",
    ),
    _kind(
        "slot.inactive",
        "slot",
        "c",
        "SluiceIngestDown",
        "Ingest says that it streams, but the server has no walsender for the slot.",
        "Restart ingest. If the problem comes back, look for a proxy that keeps dead connections open.",
    ),
    _kind(
        "slot.foreign",
        "slot",
        "c",
        "SluiceSlotEndangered",
        "The slot is in use by a client that is not this pipeline. What that client confirms is lost to the pipeline.",
        "Stop the client that the message names, then run `sluice slot show`.",
    ),
    _kind(
        "server.unreachable",
        "server",
        "c",
        "SluiceIngestDown",
        "The source does not answer, or refuses.",
        "Check the server, the network, `source.dsn` and the role.",
    ),
    _kind(
        "ingest.stopped",
        "ingest",
        "cw",
        "SluiceIngestDown",
        "Ingest does not stream: it does not run, or it is starting, reconnecting, draining or failed.",
        "Start `sluice run` or `sluice up`; if it runs, its log says why it does not stream.",
    ),
    _kind(
        "ingest.stuck",
        "ingest",
        "c",
        "SluiceIngestDown",
        "A stage of ingest has not moved for minutes.",
        "Restart ingest: nothing is lost. Report its log.",
    ),
    _kind(
        "ingest.behind",
        "ingest",
        "cw",
        "SluiceLagHigh",
        "Changes that were committed long ago are not in the spool yet.",
        "Check the object store and the load of the source; docs/runbooks/SluiceLagHigh.md lists the causes.",
    ),
    _kind(
        "catalog.unexamined",
        "ingest",
        "w",
        "SluiceProblemStays",
        "Changes are spooled and applied, but ingest cannot examine the catalog, and changes that only the "
        "catalog shows may be missing. So no table is called complete any further, and no boundary is stated.",
        "The log of ingest says why the reading of the catalog fails or waits. Find a session that "
        "holds a lock on a table of the catalog, or DDL that never pauses. Nothing is lost, and the "
        "positions advance again once the catalog is examined.",
    ),
    _kind(
        "ingest.error",
        "ingest",
        "wi",
        "SluiceErrors",
        "Ingest met this error within the last hour. It is a warning while the error keeps occurring, "
        "and otherwise information. Only the running process knows it: `sluice status` and `sluice "
        "check` cannot show it, and may call a pipeline `healthy` that is `degraded` on `/status` "
        "because of it.",
        "The message says what to do; ingest retries by itself.",
    ),
    _kind(
        "snapshot.waiting",
        "ingest",
        "wi",
        "SluiceSnapshotStalled",
        "Initial rows are not read, because the source is above a limit of `source.snapshot_max_*`, "
        "or because the load that it limits cannot be measured. It is a warning after an hour. Only "
        "the running process knows it.",
        "Wait until the source has less load, or raise the limit that the message names, which needs no restart.",
    ),
    _kind(
        "spool.away",
        "spool",
        "c",
        "SluiceObjectStoreFailing",
        "The object store does not answer. Nothing is lost: changes that are not stored are not acknowledged.",
        "Check the store and the network; ingest and applier then continue by themselves.",
    ),
    _kind(
        "spool.unreadable",
        "spool",
        "c",
        "SluiceUnwatched",
        "The object store refuses, or an object in it is damaged.",
        "The message says which of the two; `sluice spool verify` checks every object.",
    ),
    _kind(
        "spool.gone",
        "spool",
        "c",
        "SluiceIngestDown",
        "The slot has served a pipeline, but the spool has no manifest: it was deleted, is not "
        "mounted, or is elsewhere.",
        "Restore the spool or correct `spool.uri` before you start anything: `sluice run` on an empty "
        "spool begins the pipeline again.",
    ),
    _kind(
        "spool.upkeep",
        "spool",
        "w",
        "SluiceProblemStays",
        "The applier cannot archive entries of the manifest, or delete what every table has in the "
        "lake: the spool grows, and each start reads more entries. Nothing is lost.",
        "The message says why; the applier's log has more. If the store refuses, give the applier's "
        "identity the permissions in deploy/object-store/s3-applier-policy.json. The applier retries "
        "at least every hour, and at a start.",
    ),
    _kind(
        "request.refused",
        "tables",
        "w",
        "SluiceErrors",
        "Ingest could not carry out a request of an operator within the last day.",
        "Correct what the reason names, and make the request again.",
    ),
    _kind(
        "prepared.open",
        "ingest",
        "w",
        "SluiceTransactionOpen",
        "A prepared transaction has been open for a long time. It keeps locks, holds back WAL, and "
        "delays new snapshots.",
        "End it at the source with `COMMIT PREPARED` or `ROLLBACK PREPARED`.",
    ),
    _kind(
        "applier.never",
        "applier",
        "cwi",
        "SluiceApplierDown",
        "No applier has ever worked on this pipeline.",
        "Start `sluice apply` or `sluice up`.",
    ),
    _kind(
        "applier.dead",
        "applier",
        "c",
        "SluiceApplierDown",
        "The applier has stopped reporting: it does not run, or it hangs. A running applier renews its "
        "lease at least every 40 s.",
        "Start `sluice apply`; if it runs, restart it. Replay is safe.",
    ),
    _kind(
        "applier.other",
        "applier",
        "c",
        "SluiceProblemStays",
        "The records do not come from the applier that `sluice up` started, but from another one.",
        "Stop one of the two: a pipeline has one applier.",
    ),
    _kind(
        "applier.failing",
        "applier",
        "cw",
        "SluiceApplyFailing",
        "The applier reports, but for a long time it has neither committed a window nor found that "
        "there is nothing to do.",
        "Its log says which table fails and why.",
    ),
    _kind(
        "applier.clock",
        "applier",
        "w",
        "SluiceProblemStays",
        "The applier's newest record is more than a minute ahead of this machine's clock. A single "
        "reading cannot tell whether such an applier is alive. The running ingest can, because it "
        "sees when the record last changed.",
        "Synchronize the clocks of both machines (NTP).",
    ),
    _kind(
        "lake.behind",
        "lake",
        "cw",
        "SluiceLakeBehind",
        "The lake lacks changes that have long been in the spool.",
        "Check the applier's log and its resources; docs/runbooks/SluiceLakeBehind.md lists the causes.",
    ),
    _kind(
        "configuration.refused",
        "ingest",
        "w",
        "SluiceProblemStays",
        "The configuration file was edited while the pipeline runs, but the edited file is not in "
        "force: all settings are as they were.",
        "The message names the settings that cannot change while a process runs: restart it, or "
        "restore the old values.",
    ),
    _kind(
        "table.stale",
        "tables",
        "c",
        "SluiceTableUnequal",
        "A lake table is known to differ from its source.",
        "If Sluice reads it again by itself, its reason says when. Otherwise, or to read it at once, "
        "run `sluice resync` with the table's name.",
    ),
    _kind(
        "table.gap",
        "tables",
        "c",
        "SluiceTableUnequal",
        "Changes of a table were lost with the slot. Its lake table stays as it was before them, and its later "
        "changes wait in the spool.",
        "Run `sluice verify --repair`: it compares the table with the source, reads again the rows "
        "that differ, and makes it live.",
    ),
    _kind(
        "verify.different",
        "tables",
        "c",
        "SluiceTableUnequal",
        "`sluice verify` found rows of a lake table that differ from the source, and has not found it equal since.",
        "First find out why they differ: `sluice verify` with the table's name names the keys of the "
        "rows. Then run `sluice verify --repair`, which reads these rows again.",
    ),
    _kind(
        "verify.late",
        "tables",
        "w",
        "SluiceTableNotFollowed",
        "Tables are compared continuously, and some were not found equal for three intervals.",
        "Check whether `sluice verify --continuous` runs, and what its log says. If you no longer "
        "want to compare continuously, run `sluice verify --continuous-ended`.",
    ),
    _kind(
        "verify.unreadable",
        "tables",
        "c",
        "SluiceProblemStays",
        "The results of comparisons cannot be read, so it is not known whether a table differs from "
        "the source. A running ingest still shows the results that it read before.",
        "If the store refuses, give ingest, and everybody who reads the status, the permission to "
        "read below `verify/`. If a record is damaged, remove the object that the message names; the "
        "record before it is then used.",
    ),
    _kind(
        "table.path",
        "tables",
        "w",
        "SluiceProblemStays",
        "Another table has the lake path of this table's name. Most often it is one that had the name "
        "before. Whoever reads that path reads the other table; the rows of this table are at the "
        "path that the message names.",
        "Read the table at the path that the message names. Or free the path of its name: drop the "
        "other table, leave it out of the publication or of `source.tables`, or set its `on_rename: "
        "move`. This table is then made again at the path of its name.",
    ),
    _kind(
        "table.quarantined",
        "tables",
        "w",
        "SluiceTableNotFollowed",
        "A table cannot be carried, and is left out.",
        "Correct what the reason names: its snapshot is then taken automatically. If your correction "
        "does not change the catalog, run `sluice resync` with the table's name.",
    ),
    _kind(
        "table.failing",
        "tables",
        "w",
        "SluiceTableNotFollowed",
        "The applier fails on a table, or the table's snapshot cannot be taken. Sluice retries.",
        "The reason names the error; the log of the applier, or of ingest, has more.",
    ),
    _kind(
        "table.maintenance",
        "tables",
        "w",
        "SluiceProblemStays",
        "The maintenance of a lake table fails: its files accumulate, files that no version needs "
        "stay, or its newest checkpoint is old and readers take longer. Its rows are correct.",
        "The message names the task and the error; the applier's log has more. The applier retries by "
        "itself. docs/applier.md says what each task does.",
    ),
    _kind(
        "table.catalog",
        "tables",
        "w",
        "SluiceProblemStays",
        "A lake table does not have its name in the catalog, or its entry there is out of date. The lake table "
        "itself is correct, and can be read by its path.",
        "The message says why, and Sluice retries. It never overwrites a name that leads to something else: drop "
        "that entry in the catalog, or choose another `catalog.name`.",
    ),
    _kind(
        "publication.operations",
        "tables",
        "i",
        "SluiceTableNotFollowed",
        "The publication leaves out kinds of change, and `source.accept_missing` allows that: the "
        "lake keeps rows that the source removed in that way, and `sluice verify` does not compare "
        "these tables. It lasts until the publication or the setting changes.",
        "Do nothing if this is intended. Otherwise publish every kind of change: the tables are then read again.",
    ),
    _kind(
        "table.detached",
        "tables",
        "i",
        "SluiceTableNotFollowed",
        "A table left the pipeline: it was dropped at the source, or is no longer published or "
        "selected. Its lake table keeps the rows that it had, and gets no more. It is shown until its "
        "entries are pruned.",
        "If this was not intended, publish it again: it begins with a new snapshot. `sluice tables add` says how.",
    ),
    _kind(
        "table.pending",
        "tables",
        "wi",
        "SluiceTableNotFollowed",
        "A table's columns changed, and the stream has not reached the position of that change yet. "
        "It is a warning after an hour.",
        "Wait. If it lasts, find out why the stream does not advance.",
    ),
    _kind(
        "table.snapshot",
        "tables",
        "wi",
        "SluiceSnapshotStalled",
        "A table's snapshot is not in the lake yet. It is a warning after an hour.",
        "Wait, or find out why it is slow.",
    ),
)
BY_CODE: dict[str, Kind] = {kind.code: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that needs attention. `where` names what it concerns, `message` says what is wrong,
    `remedy` what to do. `since` is in unix seconds, None when it is not known; `count` is how
    many things (or times) it stands for.
    """

    code: str
    severity: Severity
    where: str
    message: str
    remedy: str
    since: float | None = None
    count: int = 1

    def __post_init__(self) -> None:
        if self.severity not in BY_CODE[self.code].severities:
            raise ValueError(f"{self.code} is never {self.severity}")

    @property
    def part(self) -> Part:
        return BY_CODE[self.code].part

    def age_seconds(self, now: float) -> float | None:
        return None if self.since is None else max(0.0, now - self.since)

    def to_json(self, *, now: float) -> dict[str, Any]:
        age = self.age_seconds(now)
        return {
            "code": self.code,
            "severity": self.severity,
            "part": self.part,
            "where": self.where,
            "message": self.message,
            "what_to_do": self.remedy,
            "runbook": BY_CODE[self.code].runbook,
            "count": self.count,
            "since": None if self.since is None else datetime.fromtimestamp(self.since, UTC).isoformat(),
            "age_seconds": None if age is None else round(age, 1),
        }


def page() -> str:
    """docs/problems.md."""
    return "\n".join(
        [
            _PAGE_HEAD,
            *(
                f"| `{kind.code}` | {', '.join(kind.severities)} | {kind.meaning} | {kind.remedy} "
                f"[Runbook](runbooks/{kind.runbook}.md). |"
                for kind in KINDS
            ),
            "",
        ]
    )


_PAGE_HEAD = """\
# Problems

A problem is something that needs attention. `sluice status`, `/status`, the status page, `/readyz` and
the metric `sluice_problems` show the same list, which is computed in one place ([status](status.md)).
Codes are stable: scripts and alerts may depend on them. `critical` and
`warning` make a running pipeline `degraded`; `info` does not.

Each problem says what it concerns and what to do. If its beginning was observed, it also says since
when it lasts.

<!-- Generated from service/sluice/health/problems.py by `make docs`; `make check` compares. -->

| code | severity | meaning | what to do |
|---|---|---|---|"""
