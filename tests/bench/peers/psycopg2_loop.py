"""One stream of a slot by psycopg2's own loop, in the environment of the peers: prints one JSON line with what it cost.
Messages are counted by their first letter and dropped; the position is reported as it comes.

Seconds run from START_REPLICATION to the message that was counted last.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path

import psycopg2
from psycopg2.extras import LogicalReplicationConnection, ReplicationMessage, StopReplication

dsn, slot, publication, wanted = sys.argv[1:]
counted: Counter[bytes] = Counter()
target = int(wanted)


def consume(message: ReplicationMessage) -> None:
    counted[message.payload[:1]] += 1
    if message.payload[:1] == b"C":
        message.cursor.send_feedback(flush_lsn=message.data_start)
        if counted[b"I"] + counted[b"U"] + counted[b"D"] >= target:
            raise StopReplication


with (
    psycopg2.connect(dsn, connection_factory=LogicalReplicationConnection) as connection,
    connection.cursor() as cursor,
):
    began = time.perf_counter()
    options = {"proto_version": "1", "publication_names": publication}
    cursor.start_replication(slot_name=slot, decode=False, options=options)
    try:
        cursor.consume_stream(consume)
    except StopReplication:
        seconds = time.perf_counter() - began
lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
peak = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
rows = {"c": counted[b"I"], "u": counted[b"U"], "d": counted[b"D"]}
print(json.dumps({"seconds": seconds, "cpu_s": time.process_time(), "peak_rss_mb": peak, "counted": rows}))
