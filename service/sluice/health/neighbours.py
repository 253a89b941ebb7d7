"""Other pipelines, such as those of the same host: where their pages are, and what they say of
themselves.

Invariants: asks for `/readyz` alone, which needs no token and changes nothing. Believes nothing but the
name of a state. What a neighbour says, or that it does not answer, never touches the verdict on this
pipeline. Bounded in time and bytes; follows no redirection.
"""

import http.client
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sluice.health.verdict import STATES

_PATIENCE_SECONDS = 3.0
_MOST_BYTES = 4096
_AT_ONCE = 8
SILENT = "no answer"
STRANGE = "not a pipeline"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The pipeline called `name` has its page at `url`. `state` is one of STATES, SILENT or STRANGE,
    empty until it was asked.
    """

    name: str
    url: str
    state: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "url": self.url, "state": self.state}


class Neighbours:
    """`addresses` has the page of each, by name. `look` belongs to one thread."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self.newest = tuple(Neighbour(name, url) for name, url in sorted(addresses.items()))
        """As of the last look; from any thread."""

    def poll(self) -> None:
        """Asks each of them. Blocks for seconds at most per eight of them, raises nothing of theirs."""
        if self.newest:
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="neighbours") as pool:
                self.newest = tuple(pool.map(_asked, self.newest))


def _asked(one: Neighbour) -> Neighbour:
    return Neighbour(one.name, one.url, _state(one.url))


def _state(url: str) -> str:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_PATIENCE_SECONDS)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/readyz")
        said = connection.getresponse().read(_MOST_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return SILENT
    finally:
        connection.close()
    state = said.partition("\n")[0].strip()
    return state if state in STATES else STRANGE
