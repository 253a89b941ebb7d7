"""PEERS4: who copies the table of P4 into Parquet."""

import os
import tempfile
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.bench.contest import Contestant, Outcome, console, outcome_of, said, show, take_turns
from tests.bench.peers import environment
from tests.bench.replication import SETTINGS, W1_STATEMENTS, W1_TABLE
from tests.bench.snapshots import copied, taken
from tools.local.postgres import PostgresServer, temporary_server

_HERE = Path(__file__).parent
ROWS = int(os.environ.get("BENCH_PEERS_ROWS", "2000000"))
SUM = ROWS * (ROWS + 1) // 2


def peers4(rounds: int) -> dict[str, float | None]:
    """PEERS4: 2,000,000 W1 rows (`BENCH_PEERS_ROWS`) by one connection: COPY to /dev/null, ADBC and connectorx to a
    file of Parquet, and the snapshot of ingest.
    """
    types: dict[str, dict[str, str]] = {}
    with temporary_server(settings=SETTINGS) as server, tempfile.TemporaryDirectory() as directory:
        console.print("PEERS4: writing the table")
        with server.superuser() as connection:
            connection.execute(W1_TABLE.encode())
            connection.execute(W1_STATEMENTS[0].replace("1, 1000000", f"1, {ROWS}").encode())
            connection.execute(b"VACUUM (ANALYZE, FREEZE) w1")
            connection.execute(b"CREATE PUBLICATION bench FOR TABLE w1")
        folder = Path(directory)
        contestants = [
            Contestant("COPY", lambda _: copied(server, 1)),
            Contestant("ADBC", lambda _: _peer(server, folder, "adbc", types)),
            Contestant("connectorx", lambda _: _peer(server, folder, "connectorx", types)),
            Contestant("sluice", lambda number: taken(server, folder / f"spool_{number}", 1, rows=ROWS)),
        ]
        take_turns("PEERS4", contestants, rounds=rounds)
        show("PEERS4", contestants)
    for peer, found in types.items():
        console.print(f"{peer} reads {', '.join(f'{name} as {kind}' for name, kind in found.items())}")
    ours = contestants[-1]
    figures: dict[str, float | None] = {f"{one.name} of ours": one.median_s / ours.median_s for one in contestants}
    return figures | {f"{one.name} cpu s": one.median("cpu_s") for one in contestants}


def _peer(server: PostgresServer, folder: Path, peer: str, types: dict[str, dict[str, str]]) -> Outcome:
    path = folder / f"{peer}.parquet"
    result = said(environment.python(), str(_HERE / "copy_to_parquet.py"), peer, server.dsn(), str(path))
    ids = pq.read_table(path, columns=["id"])["id"]
    if (len(ids), pc.sum(ids).as_py()) != (ROWS, SUM):
        raise RuntimeError(f"{peer} wrote {len(ids)} rows, not those of the table")
    path.unlink()
    types[peer] = result["types"]
    return outcome_of(result)
