"""The stream of one slot read and thrown away, in a process of its own: prints one JSON line with what it cost. It is
the server's own limit, as a client in Python can see it: libpq's buffer is emptied, and nothing is decoded or kept.

Seconds run from the moment START_REPLICATION is sent to the report of the target.
"""

import json
import select
import sys
import time

from sluice.lsn import parse
from sluice.protocol import constants as c
from sluice.protocol.keepalive import decode_keepalive
from sluice.protocol.standby_status import StandbyStatus
from sluice.source.sessions import SourceOptions
from sluice.source.start_replication import start_command, start_replication
from tests.bench.ingest_once import peak_rss_mb

COALESCE_SECONDS = 0.004
"""As ingest leaves the socket alone while bytes are coming."""


def main() -> None:
    dsn, slot, publication, until = sys.argv[1:]
    target = parse(until)
    options = SourceOptions(dsn=dsn, slot=slot, publication=publication, application_name=slot)
    command = start_command(
        options, start_lsn=0, proto_version=1, streaming="off", two_phase=False, messages=False, origin="any"
    )
    began = time.perf_counter()
    started = start_replication(options, command=command, expect=None)
    connection = started.conn.pgconn
    received = 0
    while received < target:
        select.select([connection.socket], [], [], 1.0)
        time.sleep(COALESCE_SECONDS)
        connection.consume_input()
        while True:
            size, block = connection.get_copy_data(1)
            if size <= 0:
                break
            if block[0] == c.PRIMARY_KEEPALIVE:
                received = max(received, decode_keepalive(bytes(block)).end_lsn)
            elif size > c.XLOGDATA_HEADER_BYTES and block[c.XLOGDATA_HEADER_BYTES] == c.COMMIT:
                received = max(received, int.from_bytes(block[c.XLOGDATA_WAL_END], "big"))
    connection.put_copy_data(StandbyStatus(received, received, reply_requested=False).encode(0))
    connection.flush()
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "cpu_s": time.process_time(), "peak_rss_mb": peak_rss_mb()}))


if __name__ == "__main__":
    main()
