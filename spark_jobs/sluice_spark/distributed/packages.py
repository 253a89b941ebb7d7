"""What the Python of driver and executors must have in common: Sluice's code, and the packages that decide
how a key is hashed and a value is written.

Owns that no task works with others. Two executors that hash a key differently would fold its changes
apart, and no account would show it.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable

import numpy as np
import pyarrow as pa
import pyroaring

from sluice.errors import ApplyError

HINT = "give driver and executors the same image, or the same packages and spark.pyspark.python"


@lru_cache(maxsize=1)
def packages() -> Mapping[str, str]:
    """Version by name, of this process. Sluice's is a digest of its code."""
    digest = hashlib.sha256()
    for package in ("sluice", "sluice_spark"):
        for path, content in _sources(resources.files(package), package):
            digest.update(f"{path} {len(content)} ".encode() + content)
    others = {module.__name__: str(module.__version__) for module in (np, pa, pyroaring)}
    return {"Sluice": digest.hexdigest()[:12], **others}


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.name.endswith(".py"):
            yield f"{path}/{item.name}", item.read_bytes()
        elif item.is_dir() and item.name != "__pycache__":
            yield from _sources(item, f"{path}/{item.name}")


def difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """How executors with `theirs` differ from a driver with `ours`, empty when they do not."""
    return ", ".join(
        f"{name} {theirs.get(name, 'missing')} instead of {version}"
        for name, version in ours.items()
        if theirs.get(name) != version
    )


def require(ours: Mapping[str, str]) -> None:
    """Raises ApplyError unless this executor has what the driver has, which is `ours`."""
    if found := difference(packages(), ours):
        raise ApplyError(f"Spark's executors have {found}", hint=HINT)
