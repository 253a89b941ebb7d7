"""`python -m tools.release`: what the workflow of a release runs, step by step.

`dist` makes everything that is published with a version. `notes TAG` writes the section of the changelog, and fails
when the tag is not the version or there is none. `chart` packages the chart with the images of the release.
"""

import argparse
import sys
import tomllib
from pathlib import Path

from sluice.errors import UsageError
from tools.release import bill, chart, dist, notes

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("dist").add_argument("--to", type=Path, default=Path("dist"))
    commands.add_parser("notes").add_argument("tag")
    commands.add_parser("chart").add_argument("images", nargs="*")
    given = parser.parse_args(arguments)
    try:
        if given.command == "notes":
            _notes(given.tag)
        elif given.command == "chart":
            sys.stdout.write(f"{chart.package(ROOT / 'helm' / 'sluice', BUILD / 'chart', given.images)}\n")
        else:
            _dist(given.to)
    except UsageError as error:
        sys.stderr.write(f"{error}\n{error.hint}\n")
        return error.exit_code
    return 0


def _version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def _notes(tag: str) -> None:
    if tag != f"v{_version()}":
        raise UsageError(f"the tag {tag} is not v{_version()}", hint="change the version first, in pyproject.toml")
    BUILD.mkdir(exist_ok=True)
    text = notes.of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), _version())
    (BUILD / "notes.md").write_text(text, encoding="utf-8")


def _dist(to: Path) -> None:
    version = _version()
    made = [*dist.build(ROOT, to), *dist.build(ROOT / "lake", to, sources=dist.READERS)]
    materials = to / f"sluice-cdc-{version}.cdx.json"
    materials.write_text(bill.of(ROOT, version), encoding="utf-8")
    sums = "".join(f"{dist.digest(one)}  {one.name}\n" for one in [*made, materials])
    (to / "SHA256SUMS").write_text(sums, encoding="utf-8")
    sys.stdout.write(sums)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
