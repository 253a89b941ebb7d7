"""`python -m tools.docs` writes every generated file of the repository again and removes what is no longer
generated; with `--check` it names those that are not as the code says, and writes nothing. `make check` has too few
packages for the list of licenses: it is written, and a test compares it.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from deploy.chart import files as chart
from deploy.monitoring import files as monitoring
from sluice.cli import cli, exits, findings_view
from sluice.cli.templates import GRANTS
from sluice.health import problems
from sluice.settings import display
from tools.docs import commands, metrics, types
from tools.release import licenses


def generated(root: Path) -> dict[Path, str]:
    """Every file below `root` that the code alone decides, and its text, by the path from there."""
    pages = {
        "docs/cli.md": commands.page(cli),
        "docs/configuration.md": display.page(),
        "docs/metrics.md": metrics.page(),
        "docs/types.md": types.page(),
        "docs/exit-codes.md": exits.page(),
        "docs/findings.md": findings_view.page(),
        "docs/problems.md": problems.page(),
        "deploy/postgres/grants.sql": GRANTS.replace("@PIPELINE@", "main"),
    }
    return {Path(name): text for name, text in pages.items()} | monitoring.generated() | chart.generated(root)


def listed() -> dict[Path, str]:
    """The files that the packages of `make setup` decide, in the same form."""
    return {Path("docs/licenses.md"): licenses.page()}


def old(root: Path, wanted: dict[Path, str]) -> list[Path]:
    """The files below `root` that are not as they are `wanted`, and those that nothing generates any more."""
    changed = [
        path
        for path, text in wanted.items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]
    return [*changed, *_left_over(root, wanted)]


def _left_over(root: Path, wanted: dict[Path, str]) -> Iterable[Path]:
    folders = {path.parent for path in wanted if monitoring.is_ours(path)}
    present = (path.relative_to(root) for folder in folders for path in (root / folder).glob("*"))
    return (path for path in present if path not in wanted)


def main(root: Path, *, check: bool) -> str:
    """Writes the files; what is wrong with them if they are only to be checked, or nothing."""
    wanted = generated(root)
    if check:
        return "".join(f"{path} is not as the code says: run `make docs`\n" for path in old(root, wanted))
    wanted |= listed()
    for path in old(root, wanted):
        if path in wanted:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(wanted[path], encoding="utf-8")
        else:
            (root / path).unlink()
    return ""


if __name__ == "__main__":
    sys.exit(main(Path.cwd(), check="--check" in sys.argv) or None)
