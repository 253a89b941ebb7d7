"""What must hold in a history, checked after each event and at its end.

* What the server may forget is in the manifest that is stored.
* Each table of which the applier says through where it is complete has the rows that the server had there.
* No two tables that are carried have one lake path.
* In the end every published table is live and equal, and every other one is detached.
"""

from typing import TYPE_CHECKING

from sluice.contract.applied import AppliedTable
from sluice.contract.table_state import State
from sluice.manifest.reader import load_state
from sluice.manifest.values import PipelineState
from tests.simulation.applier import Finding, Kept, LakeTable

if TYPE_CHECKING:
    from tests.simulation.world import World


class Oracle:
    """For one history."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.checked = 0
        """How many claims of the applier were compared."""
        self._state: PipelineState | None = None
        self._seen: dict[str, tuple[int, int]] = {}

    def acknowledged(self, lsn: int) -> None:
        """Raises Finding."""
        process = self._world.process
        durable = process.log.stored.through_lsn if process is not None else 0
        if lsn > durable:
            raise Finding(f"{lsn:#x} was acknowledged, the manifest goes through {durable:#x}")

    def check(self, *, claims: bool = True) -> None:
        """After any event; `claims` are those of the applier, which change when it does something. Raises Finding."""
        world = self._world
        if world.process is not None and world.process.log.stored is not self._state:
            self._state = world.process.log.stored
            paths: dict[str, str] = {}
            for state in world.process.log.stored.tables.values():
                if state.state != State.DETACHED and paths.setdefault(state.path, state.table_id) != state.table_id:
                    raise Finding(f"tables {state.table_id} and {paths[state.path]} have the lake path {state.path}")
        if world.applier is not None and claims:
            moved = world.applier.ledger.moved()
            for table_id, row in world.applier.ledger.report().items():
                self._check_claim(row, world.lake.tables.get(table_id), again=table_id in moved)

    def _check_claim(self, row: AppliedTable, lake: LakeTable | None, *, again: bool) -> None:
        lsn = row.complete_through_lsn
        if row.state != State.LIVE or not lsn:
            return
        if lake is None or lake.generation != row.generation:
            raise Finding(f"{row.table_name} is live and complete through {lsn:#x} without a lake table")
        if not again and self._seen.get(row.table_id) == (lsn, lake.version):
            return
        self._seen[row.table_id] = lsn, lake.version
        kept = next((one for one in reversed(lake.kept) if one.from_lsn <= lsn), None)
        if kept is None:
            raise Finding(f"{row.table_name} is complete through {lsn:#x}, before its snapshot")
        if lsn <= kept.to_lsn:
            self.checked += 1
            self.compare(row, lsn, kept, whole=kept is lake.kept[-1])

    def compare(self, row: AppliedTable, lsn: int, kept: Kept, *, whole: bool = True) -> None:
        """Raises Finding unless the rows are those of the server as of `lsn`. Of a version that the lake table was in
        before, when it was not called complete through there yet, not the `whole` of them: without columns that came
        or went.
        """
        table, rows = self._world.server.at(int(row.table_id), lsn)
        columns = {column.attnum: column.name for column in table.columns} if table is not None else {}
        ours = {column.attnum: column.name for column in kept.schema.columns}
        left_out = set() if whole else {name for attnum, name in ours.items() if columns.get(attnum) != name}
        left_out |= set() if whole else {name for attnum, name in columns.items() if ours.get(attnum) != name}
        expected = {} if table is None else {key: _without(table.read(one), left_out) for key, one in rows.items()}
        found = {
            str(one[1]): _without({name: one.get(attnum) for attnum, name in ours.items()}, left_out)
            for one in kept.rows.values()
        }
        if found != expected:
            what = _difference(found, expected)
            raise Finding(f"{row.table_name} ({row.table_id}) is {row.state} and complete through {lsn:#x}, but {what}")

    def is_settled(self) -> bool:
        """Whether nothing is left to do."""
        world = self._world
        process, applier = world.process, world.applier
        if process is None or applier is None or not applier.idle:
            return False
        state = process.log.stored
        if not (state.through_lsn >= world.server.now and state.examined_lsn == state.through_lsn):
            return False
        if applier.ledger.read_seq < state.seq:
            return False
        followed = {int(one.table_id): one.state for one in state.tables.values()}
        return all(
            followed.get(oid) == State.LIVE for oid, table in world.server.tables.items() if table.membership
        ) and all(row.state in (State.LIVE, State.DETACHED) for row in applier.ledger.report().values())

    def final(self) -> None:
        """Raises Finding."""
        world = self._world
        assert world.process is not None
        assert world.applier is not None
        if load_state(world.store) != world.process.log.stored:
            raise Finding("the stored manifest does not give the state that ingest has")
        report = world.applier.ledger.report()
        states = world.process.log.stored.tables
        for oid, table in world.server.tables.items():
            state = states.get(str(oid))
            if not table.membership:
                if state is not None and state.state != State.DETACHED:
                    raise Finding(f"{table.name} is not published, and is {state.state} in the end")
                continue
            if state is None or state.state != State.LIVE:
                said = "unknown" if state is None else f"{state.state}: {state.reason}"
                raise Finding(f"{table.name} is published, and is {said} in the end")
            row = report[str(oid)]
            if (row.state, row.complete_through_lsn) != (State.LIVE, world.process.log.stored.through_lsn):
                raise Finding(
                    f"{table.name} is {row.state} and complete through {row.complete_through_lsn:#x} in the end, "
                    f"the manifest through {world.process.log.stored.through_lsn:#x}: {row.reason}"
                )
            self.compare(row, row.complete_through_lsn, world.lake.tables[str(oid)].kept[-1])


def _without(row: dict[str, str | None], names: set[str]) -> dict[str, str | None]:
    return {name: value for name, value in row.items() if name not in names}


def _difference(found: dict[str, dict[str, str | None]], expected: dict[str, dict[str, str | None]]) -> str:
    for key in sorted(found.keys() | expected.keys()):
        if found.get(key) != expected.get(key):
            return f"row {key} is {found.get(key)} in the lake and {expected.get(key)} at the server"
    return "nothing differs"
