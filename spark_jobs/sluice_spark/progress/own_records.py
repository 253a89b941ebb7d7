"""Numbered objects that one process alone may create, one after the other.

Owns that an answer of the store which was lost does no harm: what may be there is created again with the same content,
before anything else is. So an object that is there with other content is another process's.
"""

from sluice.errors import ObjectExists, WriterFenced
from sluice.store.base import ObjectStore


class OwnRecords:
    """`what` they are is for people."""

    def __init__(self, store: ObjectStore, *, what: str) -> None:
        self._store, self._what = store, what
        self._doubtful: tuple[str, bytes] | None = None

    def settle(self) -> bool:
        """Makes sure of the object that `create` may have made, whose answer was lost. Whether there was one. Raises as
        `create`.
        """
        if self._doubtful is None:
            return False
        self.create(*self._doubtful)
        return True

    def create(self, key: str, data: bytes) -> None:
        """Raises WriterFenced when there is another object, StoreError."""
        self._doubtful = key, data
        try:
            self._store.create(key, data)
        except ObjectExists as error:
            # A retry inside the store may have met its own first attempt.
            if self._store.get(key) != data:
                raise WriterFenced(f"another applier has written {self._what}") from error
        self._doubtful = None
