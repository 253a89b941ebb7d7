"""docs/licenses.md: under which licenses the things come that an installation has."""

from collections import defaultdict
from pathlib import Path

from tools.release import components

ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "LGPL-3.0-only", "MIT", "MIT-0", "MPL-2.0",
    "PSF-2.0", "Zlib",
}  # fmt: skip
"""What may be installed with Sluice. LGPL: psycopg, which is used as a library that a user can exchange. MPL:
certifi, a list of certificates that is not changed.
"""
_HEAD = """# Licenses

Sluice has the Apache License 2.0. This page is generated from the locks and from what each package
says about itself. A test refuses a license that is not in the list that the project has checked.

`sluice-cdc[all]` installs the packages, and its first start fetches the jars. PySpark contains
Spark's own jars; their licenses are in its folder `licenses`. A release has the same list as a bill
of materials in CycloneDX form, with the hashes of the jars.
"""


def page() -> str:
    """The page, with one row for each license."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in components.all_of(Path(__file__).parents[2]):
        shown = f"`{one.group + ':' if one.group else ''}{one.name}` {one.version}"
        found[one.kind, one.license].append(shown)
    parts = [_HEAD]
    for kind, title in (("pypi", "Python packages"), ("maven", "Jars")):
        rows = [f"| {name} | {', '.join(names)} |" for (of, name), names in sorted(found.items()) if of == kind]
        parts.append("\n".join([f"## {title}\n", "| License | What |", "|---|---|", *rows, ""]))
    return "\n".join(parts)
