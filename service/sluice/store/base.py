"""What Sluice asks of object storage, and the rules for keys that every store keeps.

Invariant: the guarantees below mean the same on every store; a conformance suite runs one set of
tests over all of them. Errors of a library or of the operating system never leave this package: they
are translated at its edge into the four StoreErrors. It must not know what the objects mean, and it
must not decide whether an ambiguous write happened: its caller reads back.
"""

import re
from collections.abc import Iterator
from typing import Protocol

from sluice.errors import StoreRefused

TEMPORARY_PREFIX = ".sluice-"
"""Names that begin so belong to a store's own unfinished writes: never a key, never listed."""

MAX_KEY_BYTES = 900
"""S3 and GCS allow 1024 bytes for the whole key; the rest is for the prefix in the URI."""
MAX_PART_BYTES = 240
"""Local file systems allow 255 bytes for a name."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")


class ObjectStore(Protocol):
    """Synchronous, thread-safe access to the objects below one prefix.

    Every method may raise StoreUnavailable (no answer, throttled, 5xx, a conflict in flight, a full
    disk: try again) or StoreRefused (denied, no such bucket, read-only, an impossible key: a human
    must act). After StoreUnavailable a write may or may not have happened.
    """

    def get(self, key: str) -> bytes:
        """The whole object, as the last completed write left it. Raises ObjectMissing."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes of the object from `start` on, fewer where it ends. Raises ObjectMissing."""

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Stores `data` whatever was there. Readers see the old object or the new one, never a
        part. Durable when it returns.
        """

    def create(self, key: str, data: bytes | memoryview) -> None:
        """Stores `data` only if nothing is there: of any number of callers in any number of
        processes exactly one succeeds. Durable when it returns.

        Raises ObjectExists if something is there, and what is there is then durable too. A retry
        inside the store may have met the caller's own first attempt, so ObjectExists and
        StoreUnavailable both leave a doubt that only reading back and comparing removes.
        """

    def size(self, key: str) -> int | None:
        """Bytes of the object, None if there is none."""

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        """Keys that begin with `prefix` (empty, or a folder with its slash) and sort after `after`,
        ascending by code point, at any depth.

        Not a snapshot: objects written meanwhile may be missed, even in the middle. Nothing may
        conclude from one listing that an object is absent.
        """

    def delete(self, key: str) -> None:
        """Removes the object; nothing happens if there is none. A crash may undo it."""

    def describe(self) -> str:
        """The URI, without secrets."""


def checked_key(key: str) -> str:
    """`key`, if it names an object below the prefix on every store. Raises StoreRefused: keys come
    from files that may have been tampered with.
    """
    parts = key.split("/")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError as error:
        raise StoreRefused("an object key is not valid Unicode") from error
    legal = all(part not in ("", ".", "..") and not part.startswith(TEMPORARY_PREFIX) for part in parts)
    if not legal or max(sizes) > MAX_PART_BYTES or sum(sizes) + len(sizes) > MAX_KEY_BYTES or _FORBIDDEN.search(key):
        raise StoreRefused(
            f"not an object key: {key[:200]!r}",
            hint="a key is a relative path without empty, '.' or '..' parts; one that is not comes from a "
            "damaged or forged manifest",
        )
    return key


def checked_prefix(prefix: str) -> str:
    """`prefix`, if it is empty or a folder with its slash. Raises StoreRefused: some stores match
    by path part, others by character.
    """
    if prefix:
        if not prefix.endswith("/"):
            raise StoreRefused(f"not a folder: {prefix[:200]!r}", hint="a listing is of a folder, with its slash")
        checked_key(prefix[:-1])
    return prefix
