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
        "The pipeline cannot go on from its slot: the slot is missing, invalidated, ahead of the "
        "manifest, or on another server.",
        "Do not retry. `sluice slot show` names the case. `sluice slot recreate` goes on with a new slot where that is "
        "possible; docs/operations/disasters.md has the steps.",
    ),
    _kind(
        "slot.unreserved",
        "slot",
        "c",
        "SluiceSlotEndangered",
        "The server no longer promises to keep the WAL that the slot needs.",
        "Get ingest going at once, or raise `max_slot_wal_keep_size`.",
    ),
    _kind(
        "slot.headroom",
        "slot",
        "cw",
        "SluiceSlotEndangered",
        "The slot has used most of `max_slot_wal_keep_size`, or will have within hours.",
        "Get ingest going, or raise `max_slot_wal_keep_size`.",
    ),
    _kind(
        "slot.inactive",
        "slot",
        "c",
        "SluiceIngestDown",
        "Ingest says that it streams, and the server has no walsender on the slot.",
        "Restart ingest. If it comes back, look for a proxy that keeps dead connections open.",
    ),
    _kind(
        "slot.foreign",
        "slot",
        "c",
        "SluiceSlotEndangered",
        "The slot is in use by a client that is not this pipeline. What that client confirms is lost to the pipeline.",
        "Stop the client that is named, then look at `sluice slot show`.",
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
        "Look at the object store and at the load of the source; docs/runbooks/SluiceLagHigh.md goes "
        "through the causes.",
    ),
    _kind(
        "catalog.unexamined",
        "ingest",
        "w",
        "SluiceProblemStays",
        "Changes are spooled and applied, and no look at the catalog has found that it has nothing else: what only the "
        "catalog shows may be missing, so no table is stated complete any further, and no boundary is stated.",
        "The log of ingest says why looks fail or wait. Look for a session that holds a lock on a table of the "
        "catalog, and for DDL that never pauses. Nothing is lost, and the statements go on by themselves.",
    ),
    _kind(
        "ingest.error",
        "ingest",
        "wi",
        "SluiceErrors",
        "Ingest met this error within the last hour. A warning while it keeps coming, else "
        "information. Known to the running "
        "process alone: `sluice status` and `sluice check` cannot show it, and may call a pipeline "
        "`healthy` that is `degraded` on `/status` for it.",
        "The message says what to do; ingest tries again by itself.",
    ),
    _kind(
        "snapshot.waiting",
        "ingest",
        "wi",
        "SluiceSnapshotStalled",
        "Initial rows are not read, because the source is above a limit of `source.snapshot_max_*`, or what the limit "
        "is about cannot be seen. A warning after an hour. Known to the running process alone.",
        "Wait until the source has less to do, or raise the limit that is named, which needs no restart.",
    ),
    _kind(
        "spool.away",
        "spool",
        "c",
        "SluiceObjectStoreFailing",
        "The object store does not answer. Nothing is lost: what is not stored is not acknowledged.",
        "Check the store and the network; ingest and applier go on by themselves.",
    ),
    _kind(
        "spool.unreadable",
        "spool",
        "c",
        "SluiceUnwatched",
        "The object store refuses, or what it holds is damaged.",
        "The message says which; `sluice spool verify` looks at every object.",
    ),
    _kind(
        "spool.gone",
        "spool",
        "c",
        "SluiceIngestDown",
        "The slot has served a pipeline, and the spool has no manifest: it was deleted, is not "
        "mounted, or is elsewhere.",
        "Bring the spool back or correct `spool.uri`, before anything is started: `sluice run` on an "
        "empty spool begins the pipeline again.",
    ),
    _kind(
        "spool.upkeep",
        "spool",
        "w",
        "SluiceProblemStays",
        "The applier cannot archive entries of the manifest, or delete what every table has in the lake: the spool "
        "grows, and starts read more and more entries. Nothing is lost.",
        "The message says why, the applier's log has more. Refused: give its identity the rights of "
        "deploy/object-store/s3-applier-policy.json. It is tried again at least every hour, and at a start.",
    ),
    _kind(
        "request.refused",
        "tables",
        "w",
        "SluiceErrors",
        "Ingest could not carry out a request of an operator within the last day.",
        "Correct what the reason says and ask again.",
    ),
    _kind(
        "prepared.open",
        "ingest",
        "w",
        "SluiceTransactionOpen",
        "A prepared transaction has been open for long. It holds locks, WAL and new snapshots.",
        "`COMMIT PREPARED` or `ROLLBACK PREPARED` at the source.",
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
        "The applier has stopped reporting, which it does at least every 20 s: it does not run, or it hangs.",
        "Start `sluice apply`; if it runs, restart it. Replay is safe.",
    ),
    _kind(
        "applier.other",
        "applier",
        "c",
        "SluiceApplierDown",
        "The records come from another applier than the one that `sluice up` started.",
        "Stop one of the two: one applier per pipeline.",
    ),
    _kind(
        "applier.failing",
        "applier",
        "cw",
        "SluiceApplyFailing",
        "The applier reports, and has neither committed a window nor found nothing to do for long.",
        "Its log says which table fails and why.",
    ),
    _kind(
        "applier.clock",
        "applier",
        "w",
        "SluiceApplierDown",
        "The applier's newest record is from the future by our clock, by more than a minute. One "
        "look cannot "
        "tell whether such an applier lives; the running ingest can, by when the record last changed.",
        "Set the clocks of both machines right (NTP).",
    ),
    _kind(
        "lake.behind",
        "lake",
        "cw",
        "SluiceLakeBehind",
        "The lake lacks changes that have long been in the spool.",
        "Look at the applier's log and its resources; docs/runbooks/SluiceLakeBehind.md goes through the causes.",
    ),
    _kind(
        "configuration.refused",
        "ingest",
        "w",
        "SluiceProblemStays",
        "The configuration file was edited while the pipeline runs, and what it says now is not in force: all "
        "settings are as they were.",
        "The message names what cannot change while a process runs: restart it, or set that back.",
    ),
    _kind(
        "table.stale",
        "tables",
        "c",
        "SluiceTableUnequal",
        "A lake table is known not to equal its source.",
        "If it is read again by itself, its reason says when. Otherwise, or to have it at once, run `sluice resync` "
        "with the table's name.",
    ),
    _kind(
        "table.gap",
        "tables",
        "c",
        "SluiceTableUnequal",
        "Changes of a table were lost with the slot. Its lake table stays as it was before them, and its later "
        "changes wait in the spool.",
        "`sluice verify --repair` compares it with the source, reads again the rows that differ, and makes it live.",
    ),
    _kind(
        "verify.different",
        "tables",
        "c",
        "SluiceTableUnequal",
        "`sluice verify` found rows of a lake table that differ from the source, and has not found it equal since.",
        "`sluice verify` with the table's name names the keys of the rows; `sluice verify --repair` reads them again. "
        "Find out first how they came to differ.",
    ),
    _kind(
        "verify.late",
        "tables",
        "w",
        "SluiceTableNotFollowed",
        "Tables are compared continuously, and some were not found equal for three intervals.",
        "See whether `sluice verify --continuous` runs, and what its log says. If nobody is to compare continuously "
        "any more, `sluice verify --continuous-ended` says so.",
    ),
    _kind(
        "verify.unreadable",
        "tables",
        "c",
        "SluiceProblemStays",
        "It cannot be read what comparisons found: whether a table differs from the source is not known. What a "
        "running ingest read before is still shown.",
        "Refused: give ingest and whoever asks for the status the right to read below `verify/`. Damaged: remove the "
        "object that is named; the record before it then holds.",
    ),
    _kind(
        "table.path",
        "tables",
        "w",
        "SluiceProblemStays",
        "Another table has the lake path of this table's name, most often one that had the name before. Whoever reads "
        "that path reads the other table; the rows of this one are at the path that the message names.",
        "Read the table at its own path, or give the other one up: drop it, leave it out of the publication or of "
        "`source.tables`, or set its `on_rename: move`. This table is then made anew at the path of its name.",
    ),
    _kind(
        "table.quarantined",
        "tables",
        "w",
        "SluiceTableNotFollowed",
        "A table cannot be carried, and is left out.",
        "Correct what the reason says: its snapshot is then taken by itself. Where the catalog does "
        "not show it, `sluice resync` with the table's name.",
    ),
    _kind(
        "table.failing",
        "tables",
        "w",
        "SluiceTableNotFollowed",
        "The applier fails on a table, or its snapshot cannot be taken, and it is tried again.",
        "The reason names the error; the log of the applier, or of ingest, has more.",
    ),
    _kind(
        "table.maintenance",
        "tables",
        "w",
        "SluiceProblemStays",
        "The maintenance of a lake table fails: its files pile up, files that no version needs stay, or its newest "
        "checkpoint is old and readers take longer. Its rows are right.",
        "The message names the task and the error, the applier's log has more; it is tried again by itself. "
        "docs/applier.md tells what each task does.",
    ),
    _kind(
        "publication.operations",
        "tables",
        "i",
        "SluiceTableNotFollowed",
        "The publication leaves out kinds of change, and `source.accept_missing` allows that: the lake keeps rows that "
        "the source removed so, and `sluice verify` does not compare these tables. Lasts as long as both say so.",
        "Nothing, if that is meant. Otherwise publish every kind of change: the tables are then read again.",
    ),
    _kind(
        "table.detached",
        "tables",
        "i",
        "SluiceTableNotFollowed",
        "A table left the pipeline: it was dropped at the source, or is no longer published or selected. Its lake "
        "table keeps the rows that it had, and gets no more. Shown until its entries are pruned.",
        "If that was not meant, publish it again: it begins with a new snapshot. `sluice tables add` says how.",
    ),
    _kind(
        "table.pending",
        "tables",
        "wi",
        "SluiceTableNotFollowed",
        "A table's columns changed, and the stream has not come to the position of that yet. A warning after an hour.",
        "Wait; if it lasts, see why the stream does not advance.",
    ),
    _kind(
        "table.snapshot",
        "tables",
        "wi",
        "SluiceSnapshotStalled",
        "A table's snapshot is not in the lake yet. A warning after an hour.",
        "Wait, or see why it is slow.",
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

A problem is something that needs attention. `sluice status`, `/status`, the status page, `/readyz`
and the metric `sluice_problems` show the same list, which is made in one place
([status](status.md)). Codes are stable: scripts and alerts may depend on them. `critical` and
`warning` make a running pipeline `degraded`; `info` does not. Each problem names what it is about,
since when, if the beginning was observed, and what to do.

<!-- Generated from service/sluice/health/problems.py by `python -m tools.docs`; a test compares. -->

| code | severity | meaning | what to do |
|---|---|---|---|"""
