"""An emulator of Azure Blob Storage on loopback, in a process of its own.

`make clouds` puts it below build/azurite. It keeps objects in memory and does not outlive its owner.
"""

import base64
import contextlib
import hashlib
import hmac
import shutil
import signal
import urllib.request
import uuid
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

from tests.support.answers import listens
from tools.local.child import Child
from tools.local.ports import free_port

_BUILD = Path(__file__).parents[2] / "build" / "azurite"
_MAIN = _BUILD / "node_modules/azurite/dist/src/blob/main.js"
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own account and key, the same everywhere and published with it."""


def missing() -> str:
    """Why the emulator cannot be used; empty when it can."""
    if shutil.which("node") is None:
        return "node is not installed, so that Azurite cannot run"
    if not (_BUILD / ".done").exists():
        return "Azurite is not in build/azurite; `make clouds` puts it there"
    return ""


class AzureServer:
    """One emulator on 127.0.0.1:`port`."""

    def __init__(self) -> None:
        self.port = free_port()
        self._child = Child(f"Azurite on port {self.port}", last_signal=signal.SIGKILL)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{_ACCOUNT}"

    def start(self) -> None:
        listen = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        # It sends telemetry otherwise.
        quiet = ["--inMemoryPersistence", "--silent", "--disableTelemetry"]
        self._child.start(["node", str(_MAIN), *listen, *quiet], is_ready=lambda _pid: listens(self.port))

    def stop(self) -> None:
        self._child.stop(signal.SIGKILL)

    def create_container(self) -> str:
        name = f"container-{uuid.uuid4().hex[:10]}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
        canonical = "".join(f"{header}:{value}\n" for header, value in sorted(headers.items()))
        # The account twice: once for itself, once as the first part of the emulator's path.
        text = "PUT" + "\n" * 12 + canonical + f"/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
        signature = base64.b64encode(hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest())
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{signature.decode()}"
        request = urllib.request.Request(f"{self.endpoint}/{name}?restype=container", method="PUT", headers=headers)
        urllib.request.urlopen(request, timeout=10).close()
        return f"az://{name}"

    def options(self) -> dict[str, str]:
        return {
            "azure_storage_account_name": _ACCOUNT,
            "azure_storage_account_key": _KEY,
            "azure_endpoint": self.endpoint,
            "allow_http": "true",
        }


@contextlib.contextmanager
def running_azure() -> Iterator[AzureServer]:
    server = AzureServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()
