"""What a fleet is made of: the pipelines of a folder, as their configurations have them.

Values only; they are read by the command line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Member:
    """The pipeline called `name`, of the file `config`. `command` starts its ingest, when the path of a
    socket is added. `options` are those of its applier, as JSON with secrets. `fixed` are digests of the
    settings that a running process keeps.
    """

    name: str
    config: str
    command: tuple[str, ...]
    stop_seconds: float
    options: str = field(repr=False)
    fixed: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Folder:
    """`refused` has the reason for each file that is no pipeline of the fleet."""

    members: Mapping[str, Member]
    refused: Mapping[str, str]
