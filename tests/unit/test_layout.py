"""What holds everywhere in the code: no condition leaves out rows of the spool, and numbers read well."""

import ast
import re
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[2]

SERVICE = ROOT / "service" / "sluice"
PACKAGES = (SERVICE, ROOT / "spark_jobs" / "sluice_spark", ROOT / "lake" / "sluice_lake")
SEVERAL = re.compile(
    " (more )?(tables|pipelines|segments|partitions|transactions|objects|entries|rows|columns|findings|requests) "
)


def test_nothing_reads_parquet_of_the_spool_by_a_condition() -> None:
    """Its statistics of floating-point numbers are Arrow's, by which conditions leave out rows."""
    ways = r"\bfilters=|pyarrow[. ](import )?dataset|\.read\.parquet\(|format\(.parquet.\)|read_parquet\("
    files = [path for folder in PACKAGES for path in folder.rglob("*.py")]
    assert len(files) > 200
    assert [str(path) for path in files if re.search(ways, path.read_text(encoding="utf-8"))] == []


def test_one_is_one_of_a_thing_wherever_people_are_shown_a_number() -> None:
    """Who counts for people does it by `counted`. What is malformed on the wire is no case of it."""
    wire = (SERVICE / "protocol", SERVICE / "ingest" / "encode")
    files = [path for path in SERVICE.rglob("*.py") if not any(map(path.is_relative_to, wire))]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    assert [
        f"{path}: {said}" for path, tree in trees.items() for node in ast.walk(tree) for said in _uncounted(node)
    ] == []


def test_no_part_of_a_text_stands_alone() -> None:
    """Behind a line that ends, Python drops the rest of a sentence. What describes a name has three quotes."""
    files = [path for folder in PACKAGES for path in folder.rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    assert [
        f"{path}:{node.lineno}"
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and _is_text(node.value) and isinstance(node.value.value, str)
        if not text.splitlines()[node.lineno - 1].lstrip().startswith(('"""', 'r"""'))
    ] == []


def _uncounted(node: ast.AST) -> list[str]:
    """Words for several right behind a value in a text."""
    pairs = pairwise(node.values) if isinstance(node, ast.JoinedStr) else ()
    words = [text.value for value, text in pairs if _is_text(text) and "counted(" not in ast.unparse(value)]
    return [str(word) for word in words if SEVERAL.match(str(word))]


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant)
