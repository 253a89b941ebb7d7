"""A spool in memory, for tests of the applier's parts without Spark."""

import uuid

import pytest

from sluice.store.memory import MemoryStore
from tests.spark.changes import Manifest


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(uuid.uuid4().hex, prefix="shop/")


@pytest.fixture
def manifest(store: MemoryStore) -> Manifest:
    return Manifest(store)
