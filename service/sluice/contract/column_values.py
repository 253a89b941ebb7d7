"""What a column rule makes of one value: the definition that the stream, snapshots, repairs and `verify` share.
Pure.

Invariant: NULL stays NULL. Everything else becomes text, and nothing but the text of the value, as PostgreSQL
prints it, decides which. (RFC 2104: HMAC. PostgreSQL: Binary String Functions.)
"""

import hashlib
from collections.abc import Callable, Iterable

from sluice.contract.schema import ColumnRule, RuleKind
from sluice.contract.types import TEXT, LakeType
from sluice.errors import UnsupportedChange

STORED_AS: LakeType = TEXT
"""How the lake stores what a rule makes."""
_BLOCK_BYTES = 64
_INNER, _OUTER = 0x36, 0x5C


class HashKeys:
    """Keys of hashes, by their id. It only grows: what was stored under a former key may still be on its way. No
    key is ever shown.
    """

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._keys = {key_id(key): key for key in keys}

    def __repr__(self) -> str:
        return f"HashKeys({', '.join(self._keys)})"

    def add(self, other: "HashKeys") -> None:
        self._keys.update(other._keys)

    def key(self, of_id: str, where: str) -> bytes:
        """Raises UnsupportedChange, which names `where` it is needed."""
        found = self._keys.get(of_id)
        if found is None:
            raise UnsupportedChange(
                f"{where} is hashed with the key {of_id}, which is not configured any more",
                hint="with another key the table is read again from a new snapshot",
            )
        return found


NO_KEYS = HashKeys()


def key_id(key: bytes) -> str:
    """What is said of a key, so that another one is noticed: it does not lead back to it."""
    return hashlib.sha256(key).hexdigest()[:8]


def blocks(key: bytes) -> tuple[bytes, bytes]:
    """The inner and the outer block of HMAC-SHA-256, for whoever has SHA-256 alone."""
    whole = (hashlib.sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    return bytes(byte ^ _INNER for byte in whole), bytes(byte ^ _OUTER for byte in whole)


def hasher(key: bytes) -> Callable[[bytes | memoryview], bytes]:
    """What makes the HMAC of a text in UTF-8. The key is taken in once: that halves the time of a value."""
    inner, outer = (hashlib.sha256(block) for block in blocks(key))

    def made(value: bytes | memoryview) -> bytes:
        within, around = inner.copy(), outer.copy()
        within.update(value)
        around.update(within.digest())
        return around.digest()

    return made


def made_of(rule: ColumnRule, text: str | None, keys: HashKeys, *, where: str) -> str | None:
    """What is stored of the value that PostgreSQL prints as `text`."""
    if text is None:
        return None
    if rule.kind is RuleKind.MASK:
        return rule.mask
    if rule.kind is RuleKind.TRUNCATE:
        return text[: rule.length]
    if rule.kind is RuleKind.HASH:
        return hasher(keys.key(rule.key_id, where))(text.encode()).hex()
    return None
