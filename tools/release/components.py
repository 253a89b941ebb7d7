"""What a release is made of: the locked Python packages of an installation with all extras, and the recorded jars.

Invariant: nothing is listed that is not in a lock, and everything in a lock that Linux installs is listed.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from sluice_spark import jars

_LOCKS = ("service.txt", "spark.txt", "glue.txt", "query.txt")
_LOCKED = re.compile(r"^([a-z0-9._-]+)==([^ ;\\\n]+)(?: ; ([^\\\n]*[^\\\n ]))?", re.MULTILINE)
_JAR = re.compile(r"^([^_]+)_(.+)-(\d[\w.]*)\.jar$")
_ELSEWHERE = "sys_platform == 'win32'"
"""Sluice runs on Linux."""
_APACHE = "Apache-2.0"
_JAR_LICENSES = {"org.reactivestreams": "MIT-0"}
"""By group, as their POMs say; all others are Apache-2.0."""
_NAMES = {
    "Apache License 2.0": _APACHE,
    "Apache Software License": _APACHE,
    "http://www.apache.org/licenses/LICENSE-2.0": _APACHE,
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "LGPL-3.0-only": "LGPL-3.0-only",
    "MIT License": "MIT",
    "BSD License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""What packages without an expression say, as SPDX has it."""


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """One package or jar. `marker` says on which machines a package is installed; `sha256` is empty for packages,
    of which each machine gets another file.
    """

    kind: str
    group: str
    name: str
    version: str
    license: str
    marker: str = ""
    sha256: str = ""

    @property
    def purl(self) -> str:
        """Its package URL."""
        return f"pkg:{self.kind}/{self.group + '/' if self.group else ''}{self.name}@{self.version}"


def all_of(root: Path) -> list[Component]:
    """Packages of the locks below `root` and that of the readers, then jars, in the order of their names."""
    packages = {one for lock in _LOCKS for one in _packages(root / "requirements" / lock)}
    everywhere = {one.purl for one in packages if not one.marker}
    needed = {one for one in packages if not one.marker or one.purl not in everywhere}
    return [*sorted({*needed, _readers(root)}), *sorted(_jars())]


def _readers(root: Path) -> Component:
    about = tomllib.loads((root / "lake" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return Component("pypi", "", about["name"], about["version"], about["license"])


def _packages(lock: Path) -> Iterator[Component]:
    for name, version, marker in _LOCKED.findall(lock.read_text(encoding="utf-8")):
        if marker != _ELSEWHERE:
            yield Component("pypi", "", name, version, _license(name), marker)


def _jars() -> Iterator[Component]:
    for jar_set in (jars.DELTA, jars.S3):
        for file, digest in jar_set.checksums.items():
            found = _JAR.match(file)
            assert found, file
            group, name, version = found.groups()
            yield Component("maven", group, name, version, _JAR_LICENSES.get(group, _APACHE), sha256=digest)


def _license(name: str) -> str:
    """The SPDX expression of an installed package; empty where it is not installed on this machine."""
    try:
        said = metadata(name)
    except PackageNotFoundError:
        return ""
    if "License-Expression" in said:
        return said["License-Expression"]
    classifiers = [
        line.rpartition(" :: ")[2] for line in said.get_all("Classifier") or [] if line.startswith("License")
    ]
    given = [word for word in (*classifiers, *(said.get_all("License") or [])) if word and word != "OSI Approved"]
    return _NAMES.get(given[0], given[0].splitlines()[0]) if given else ""
