"""One parameter for the whole folder: the kinds of object store that must all behave alike."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from tests.conformance.spools import stores
from tests.support import azurite


@pytest.fixture(scope="session")
def azure_server() -> Iterator[azurite.AzureServer]:
    """Shared by the whole run. Skips where the emulator was not fetched."""
    if reason := azurite.missing():
        pytest.skip(reason)
    with azurite.running_azure() as server:
        yield server


@pytest.fixture(params=stores())
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind, below a pipeline's prefix."""
    if request.param == "azure":
        server = request.getfixturevalue("azure_server")
        return open_store(f"{server.create_container()}/spool", prefix="shop/", options=server.options())
    if request.param == "s3":
        bucket = request.getfixturevalue("moto")
        return open_store(f"{bucket.uri}/spool", prefix="shop/", options=bucket.options)
    uri = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path}/spool"
    return open_store(uri, prefix="shop/", options={})
