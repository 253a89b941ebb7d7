"""What PostgreSQL itself cannot exceed: bytes past these sizes did not come from it, and are
refused before anything of their size is made.

Facts, not settings. The limits that an operator may raise (open streams, rolled-back
subtransactions, staged bytes) are `limits` in the configuration.
"""

MAX_COLUMNS = 1664
"""PostgreSQL's MaxTupleAttributeNumber: no tuple of any kind is wider (a table stops at 1600)."""

MAX_FRAME_BYTES = 0x3FFF_FFFF
"""PostgreSQL's MaxAllocSize: the server builds every message in one allocation, so a longer one did
not come from it.
"""

MAX_NAME_CHARACTERS = 63
"""PostgreSQL's NAMEDATALEN less the NUL. Characters, because the limit holds for bytes in the
server's encoding and the wire has UTF-8.
"""

MAX_GID_CHARACTERS = 199
"""PostgreSQL's GIDSIZE less the NUL; characters for the same reason."""

MAX_ORIGIN_CHARACTERS = 8191
"""Replication origins are named by a text column without TOAST, so a name is shorter than a page
(18 and later: 512 bytes).
"""
