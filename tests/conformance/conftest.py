"""One parameter for the whole folder: the kinds of object store that must all behave alike."""

import uuid
from pathlib import Path

import pytest

from sluice.store.base import ObjectStore
from sluice.store.opening import open_store


@pytest.fixture(params=["memory", "local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind, below a pipeline's prefix."""
    if request.param == "s3":
        bucket = request.getfixturevalue("moto")
        return open_store(f"{bucket.uri}/spool", prefix="shop/", options=bucket.options)
    uri = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path}/spool"
    return open_store(uri, prefix="shop/", options={})
