"""Builders of manifest entries with defaults, and a strategy of lists of bodies that may follow one another."""

import uuid
from typing import Any

from hypothesis import strategies as st

from sluice.contract import keys
from sluice.contract.entries import (
    Body,
    BodyCommit,
    Changes,
    Commits,
    Entry,
    Lost,
    Opened,
    Progress,
    Repair,
    Segment,
    Snapshot,
    Table,
    digest,
)
from sluice.contract.reasons import Reason
from sluice.contract.receipt import DurableReceipt
from sluice.contract.resyncs import Cause
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.table_state import State
from sluice.contract.types import lake_type
from sluice.manifest.reader import load_state
from sluice.manifest.state import MOVING, reduce
from sluice.manifest.values import PipelineState, TableState
from sluice.manifest.writer import ManifestLog
from sluice.store.base import ObjectStore
from sluice.store.memory import MemoryStore
from tests.support.reasons import because

WRITTEN_AT = "2030-01-01T00:00:00+00:00"


def opened(**changes: Any) -> Opened:
    fields: dict[str, Any] = {
        "system_identifier": "7000000000000000001",
        "timeline": 1,
        "database": "shop",
        "database_oid": 5,
        "slot": "sluice_shop",
        "publication": "sluice_shop",
        "two_phase": False,
        "origin": "any",
        "server_version": 180000,
        "start_lsn": 16,
        "instance": "one",
    }
    return Opened(**{**fields, **changes})


def schema(table_id: str = "7", version: int = 1) -> TableSchema:
    columns = tuple(
        ColumnSchema(
            f"c{attnum}",
            attnum,
            20,
            -1,
            "bigint",
            lake_type(20, -1),
            key=attnum == 1,
            identity=attnum == 1,
            missing=None if attnum == 1 else "0",
        )
        for attnum in range(1, version + 1)
    )
    return TableSchema(table_id, version, "public", f"t{table_id}", "d", columns)


def table(table_id: str = "7", *, generation: int = 1, version: int | None = 1, **changes: Any) -> Table:
    fields: dict[str, Any] = {
        "state": State.SNAPSHOT,
        "schema": schema(table_id, version) if version else None,
        "relfilenode": 1,
        "fingerprint": "{}",
    }
    fields |= changes
    if "reason" in fields:
        fields["why"] = because(fields.pop("reason"))
    return Table(
        table_id, "public", f"t{table_id}", generation=generation, **{**fields, "state": State(fields["state"])}
    )


def segment(
    table_id: str = "7",
    *,
    first_lsn: int,
    last_lsn: int | None = None,
    version: int = 1,
    body: BodyCommit | None = None,
) -> Segment:
    return Segment(
        key=f"data/{table_id}/00000001-{first_lsn:010d}.parquet",
        table_id=table_id,
        schema_version=version,
        rows=3,
        bytes=100,
        sha256="0" * 64,
        first_lsn=first_lsn,
        last_lsn=last_lsn or first_lsn,
        ops={"i": 2, "u": 1},
        unchanged={"2": 1},
        key_ranges={"c1": (1, 9)},
        body=body,
    )


def changes(*lsns: int, table_id: str = "7", version: int = 1) -> Changes:
    """Transactions that ended at `lsns`, with one segment of one table."""
    commits = Commits(list(lsns), [1_000_000 + lsn for lsn in lsns], list(range(len(lsns))), {0: ("elsewhere", 5)})
    return Changes((segment(table_id, first_lsn=lsns[0], last_lsn=lsns[-1], version=version),), commits)


def snapshot(
    table_id: str = "7", *, generation: int = 1, version: int = 1, snapshot_lsn: int = 10, final: bool = True
) -> Snapshot:
    return Snapshot(
        table_id,
        generation,
        version,
        snapshot_lsn,
        (segment(table_id, first_lsn=snapshot_lsn, version=version),),
        final,
        1,
        "f",
    )


def follow(
    state: PipelineState, body: Any, *, through_lsn: int | None = None, **fields: Any
) -> tuple[PipelineState, Entry]:
    """The entry for `body` that continues `state`, and the state after it. `fields` make it a wrong one."""
    entry = Entry(
        **{
            "seq": state.seq + 1,
            "epoch": state.epoch + isinstance(body, Opened),
            "previous_sha256": state.previous_sha256,
            "from_lsn": state.through_lsn,
            "through_lsn": state.through_lsn if through_lsn is None else through_lsn,
            "written_at": WRITTEN_AT,
            "body": body,
            **fields,
        }
    )
    return reduce(state, entry, digest(entry.encode())), entry


def put(log: ManifestLog, body: Any, *, through_lsn: int) -> DurableReceipt:
    """Appends `body` where the log is; one that moves the position moves it to `through_lsn`."""
    if isinstance(body, MOVING):
        return log.publish(body, from_lsn=log.state.through_lsn, through_lsn=through_lsn)
    assert through_lsn == log.state.through_lsn
    return log.append(body)


def started() -> PipelineState:
    """Epoch 1 with table 7 in schema version 1, complete through LSN 10."""
    state, _ = follow(PipelineState(), opened(), through_lsn=10)
    return follow(state, table())[0]


@st.composite
def histories(draw: st.DrawFn, *, most: int = 30) -> list[tuple[Any, int]]:
    """Bodies with their `through_lsn`, such that each may follow the ones before it; the first is `opened`."""
    state, _ = follow(PipelineState(), opened())
    history: list[tuple[Any, int]] = [(opened(), 0)]
    for _ in range(draw(st.integers(0, most))):
        body, through_lsn = draw(_step(state))
        state, _ = follow(state, body, through_lsn=through_lsn)
        history.append((body, through_lsn))
    return history


@st.composite
def _step(draw: st.DrawFn, state: PipelineState) -> tuple[Any, int]:
    through_lsn = state.through_lsn + draw(st.integers(0, 50))
    possible: list[Any] = [Progress(), opened(instance=draw(st.text(max_size=5))), _joining(draw, state)]
    lost = opened(lost=Lost("slot lost", tuple(draw(st.sets(st.sampled_from(["7", "8"]))))))
    possible.append(lost)
    for known in state.tables.values():
        if known.state == State.GAP and (closing := _closing(known, state.through_lsn)) is not None:
            possible.append(closing)
        if not known.schemas:
            continue  # forgotten
        version = draw(st.sampled_from(sorted(known.schemas)))
        if through_lsn > state.through_lsn:
            lsns = sorted(draw(st.sets(st.integers(state.through_lsn + 1, through_lsn), min_size=1, max_size=5)))
            possible.append(changes(*lsns, table_id=known.table_id, version=version))
        if known.state == State.SNAPSHOT and (known.snapshot is None or not known.snapshot.final):
            version, snapshot_lsn = (
                (known.snapshot.schema_version, known.snapshot.snapshot_lsn)
                if known.snapshot
                else (version, through_lsn)
            )
            possible.append(
                snapshot(
                    known.table_id,
                    generation=known.generation,
                    version=version,
                    snapshot_lsn=snapshot_lsn,
                    final=draw(st.booleans()),
                )
            )
    body = draw(st.sampled_from(possible))
    return body, through_lsn if isinstance(body, MOVING) or body is lost else state.through_lsn


def _closing(known: TableState, through_lsn: int) -> Repair | None:
    gap, snapshot = known.gap, known.snapshot
    assert gap is not None
    assert snapshot is not None
    as_of_lsn = max(gap.to_lsn, snapshot.snapshot_lsn + 1)
    if gap.schema_version != known.schema_version or as_of_lsn > through_lsn:
        return None
    versions: dict[str, Any] = {"generation": known.generation, "schema_version": known.schema_version}
    where = {"as_of_lsn": as_of_lsn, "through_lsn": through_lsn, "gap_seq": gap.seq}
    return repair(known.table_id, **where, segments=(), **versions)


def _joining(draw: st.DrawFn, state: PipelineState) -> Table:
    table_id = draw(st.sampled_from(["7", "8", "9"]))
    known = state.tables.get(table_id)
    introduces = known is None or known.is_forgotten or draw(st.booleans())
    version = (known.next_version if known else 1) if introduces else None
    further = draw(st.integers(0, 1))
    states = [State.SNAPSHOT, State.STALE]
    if known is not None and not introduces:
        states.append(State.DETACHED)  # and forgotten when it says so again, without a reason
    if further or known is None or known.gap is None:
        states.append(State.LIVE)  # what has a gap is live again by its repair or by a new generation
    return table(
        table_id,
        generation=(known.generation if known else 1) + further,
        version=version,
        state=draw(st.sampled_from(states)),
        why=draw(st.none() | st.builds(Reason.of, st.sampled_from(Cause), st.text(max_size=10))),
        relfilenode=draw(st.integers(0, 3)),
        fingerprint=draw(st.sampled_from(["", "a", "b"])),
    )


def written(body: Body) -> Entry:
    return Entry(1, 1, "", 0, 10, WRITTEN_AT, body)


def repair(table_id: str = "7", *, as_of_lsn: int, through_lsn: int, **changes: Any) -> Repair:
    fields: dict[str, Any] = {
        "generation": 1,
        "schema_version": 1,
        "segments": (segment(table_id, first_lsn=as_of_lsn),),
    }
    return Repair(table_id, as_of_lsn=as_of_lsn, unchanged_through_lsn=through_lsn, **{**fields, **changes})


EXAMPLES: list[Body] = [opened(), changes(5, 6), Progress(), table(), snapshot(), repair(as_of_lsn=5, through_lsn=10)]
"""One body of each kind."""


def open_log(store: ObjectStore, **options: Any) -> ManifestLog:
    return ManifestLog.open(store, opened(), load_state(store), **options)


def memory_log(**options: Any) -> ManifestLog:
    """On a store of its own."""
    return open_log(MemoryStore(uuid.uuid4().hex), **options)


def filled_log(store: ObjectStore, entries: int) -> ManifestLog:
    log = open_log(store)
    for lsn in range(2, entries + 1):
        put(log, Progress(), through_lsn=lsn)
    return log


def overwrite(store: ObjectStore, seq: int) -> None:
    entry = store.get(keys.manifest_entry(seq))
    store.put(keys.manifest_entry(seq), entry.replace(b'"through_lsn":', b'"note":1,"through_lsn":'))
