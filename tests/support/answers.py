"""Endpoints on this machine, and what they answer."""

import http.client
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from sluice.health.endpoint import Health, HealthServer
from sluice.telemetry.metrics import Metrics


@contextmanager
def serving(pipeline: str = "shop", component: str = "ingest", **options: Any) -> Iterator[tuple[str, Health]]:
    """The address of an endpoint, and what it says of itself."""
    metrics = Metrics(pipeline, component=component)
    health = Health(metrics)
    server = HealthServer("127.0.0.1:0", metrics=metrics, health=health, **options)
    try:
        yield server.address, health
    finally:
        server.close()


def ask(
    address: str, path: str, method: str = "GET", *, authorization: str = "", timeout: float = 30
) -> tuple[int, str]:
    """Status and content."""
    with closing(http.client.HTTPConnection(address, timeout=timeout)) as connection:
        connection.request(method, path, headers={"Authorization": authorization} if authorization else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_well(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
