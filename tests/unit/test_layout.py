"""What a reader of the code may rely on everywhere: tests stand where people look for them, and numbers read well."""

import ast
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

from tests.support import commands

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
CODE = {
    "applier": ROOT / "spark_jobs" / "sluice_spark",
    "readers": ROOT / "lake" / "sluice_lake",
    "support": TESTS / "support",
}
"""The folders of unit tests that are not named after a package of the service."""

PACKAGES = {
    "sluice": ROOT / "service" / "sluice",
    "sluice_spark": ROOT / "spark_jobs" / "sluice_spark",
    "sluice_lake": ROOT / "lake" / "sluice_lake",
}
SEVERAL = re.compile(
    " (more )?(tables|pipelines|segments|partitions|transactions|objects|entries|rows|columns|findings|requests) "
)


def _modules(folder: Path) -> dict[str, Path]:
    """The modules of an import package, by name."""
    names = {path: path.relative_to(folder.parent).with_suffix("") for path in folder.rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): path for path, name in names.items()}


def test_nothing_reads_parquet_of_the_spool_by_a_condition() -> None:
    """Its statistics of floating-point numbers are Arrow's, by which conditions leave out rows."""
    ways = r"\bfilters=|pyarrow[. ](import )?dataset|\.read\.parquet\(|format\(.parquet.\)|read_parquet\("
    files = [path for folder in PACKAGES.values() for path in folder.rglob("*.py")]
    assert len(files) > 200
    assert [str(path) for path in files if re.search(ways, path.read_text(encoding="utf-8"))] == []


def test_each_folder_of_unit_tests_is_named_after_a_package_or_a_module() -> None:
    wrong = []
    for folder in {path.parent for path in (TESTS / "unit").rglob("test_*.py")} - {TESTS / "unit"}:
        first, *rest = folder.relative_to(TESTS / "unit").parts
        code = CODE.get(first, ROOT / "service" / "sluice" / first).joinpath(*rest)
        if not (code.is_dir() or code.with_suffix(".py").is_file()):
            wrong.append(str(folder.relative_to(ROOT)))
    assert wrong == []


def test_pytest_collects_tests_of_the_service_without_importing_pyspark() -> None:
    program = (
        "import sys, pytest\n"
        "status = pytest.main(sys.argv[1:])\n"
        "sys.exit('pyspark was imported' if 'pyspark' in sys.modules else status)\n"
    )
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "tests/unit", "--ignore=tests/unit/applier"]
    command = [sys.executable, "-c", program, *options]
    ended = commands.ended(*command, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_one_is_one_of_a_thing_wherever_people_are_shown_a_number() -> None:
    """Who counts for people does it by `counted`. What is malformed on the wire is no case of it."""
    wrong = []
    for name, path in _modules(PACKAGES["sluice"]).items():
        if not name.startswith(("sluice.protocol.", "sluice.ingest.encode.")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                wrong += [f"{name}: {found}" for found in _uncounted(node)]
    assert wrong == []


def _uncounted(node: ast.AST) -> list[str]:
    """Words for several right behind a value in a text."""
    pairs = pairwise(node.values) if isinstance(node, ast.JoinedStr) else ()
    words = [text.value for value, text in pairs if _is_text(text) and "counted(" not in ast.unparse(value)]
    return [str(word) for word in words if SEVERAL.match(str(word))]


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant)
