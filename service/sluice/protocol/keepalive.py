"""The primary keepalive message, which is a CopyData payload of its own.

The receiver reads keepalives as they arrive; the decoder reads them again at their place among the
changes. (PostgreSQL: Streaming Replication Protocol, Primary keepalive message.)
"""

import struct

from sluice.errors import DecodeError
from sluice.lsn import MAX_STORED, show
from sluice.protocol.constants import KEEPALIVE_BYTES, LAST_TIME_US, POSTGRES_EPOCH_US, PRIMARY_KEEPALIVE
from sluice.protocol.messages import Keepalive

_KEEPALIVE = struct.Struct(">BQqB")


def decode_keepalive(payload: bytes | memoryview) -> Keepalive:
    """The primary keepalive message that `payload` is. Raises DecodeError unless it is exactly one."""
    if len(payload) < KEEPALIVE_BYTES or payload[0] != PRIMARY_KEEPALIVE:
        raise DecodeError("a message is too short for a keepalive, or is none")
    _, end_lsn, sent_time, reply = _KEEPALIVE.unpack(payload[:KEEPALIVE_BYTES])
    if len(payload) > KEEPALIVE_BYTES:
        problem = f"has {len(payload) - KEEPALIVE_BYTES} bytes behind its last field"
    elif end_lsn > MAX_STORED:
        problem = "has an impossible LSN"
    elif sent_time > LAST_TIME_US:
        problem = "has a time that does not fit 64-bit microseconds since 1970"
    elif reply > 1:
        problem = f"has unknown flags 0x{reply:02x}"
    else:
        return Keepalive(end_lsn, sent_time + POSTGRES_EPOCH_US, reply_requested=reply == 1)
    raise DecodeError(f"keepalive at LSN {show(end_lsn)} {problem}")
