"""What a fleet is made of: the pipelines of a folder, as their configurations have them.

Values only; they are read by the command line.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.errors import UsageError


@dataclass(frozen=True, slots=True)
class Member:
    """The pipeline called `name`, of the file `config`. `arguments` are those of its ingest, when the path of a
    socket is added. `options` are those of its applier, as JSON with secrets. `fixed` are digests of the
    settings that a running process keeps.
    """

    name: str
    config: str
    arguments: tuple[str, ...]
    stop_seconds: float
    options: str = field(repr=False)
    fixed: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Folder:
    """`refused` has the reason for each file that is no pipeline of the fleet."""

    members: Mapping[str, Member]
    refused: Mapping[str, str]


def require_members(folder: Folder) -> Folder:
    """`folder`. Raises UsageError when no pipeline is in it."""
    if not folder.members:
        reasons = "".join(f"; {config}: {reason}" for config, reason in folder.refused.items())
        raise UsageError(
            f"there is no pipeline to run{reasons}",
            hint="put a configuration NAME.yaml, or NAME/sluice.yaml, for each pipeline into the folder",
        )
    return folder


def document(members: Iterable[Member]) -> bytes:
    """All pipelines that are to be applied, as the applier of a fleet reads them: one line, with secrets."""
    return json.dumps({one.name: json.loads(one.options) for one in members}).encode() + b"\n"
