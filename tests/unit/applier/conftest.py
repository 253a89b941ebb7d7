"""A spool in memory, for tests of the applier's parts without Spark."""

import uuid

import pytest

from sluice.store.memory import MemoryStore
from tests.spark.changes import Manifest


@pytest.fixture
def store() -> MemoryStore:
    """The empty spool of pipeline `shop`."""
    return MemoryStore(uuid.uuid4().hex, prefix="shop/")


@pytest.fixture
def manifest(store: MemoryStore) -> Manifest:
    """The one of `store`."""
    return Manifest(store)
