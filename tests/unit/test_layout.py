"""What holds everywhere in the code: no condition leaves out rows of the spool, and numbers read well."""

import ast
import re
from functools import cache
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
    assert [
        f"{path}: {said}"
        for path, nodes in _nodes().items()
        if path.is_relative_to(SERVICE) and not any(map(path.is_relative_to, wire))
        for node in nodes
        for said in _uncounted(node)
    ] == []


def test_no_part_of_a_text_stands_alone() -> None:
    """Behind a line that ends, Python drops the rest of a sentence. What describes a name has three quotes."""
    alone = [
        (path, node.lineno)
        for path, nodes in _nodes().items()
        for node in nodes
        if isinstance(node, ast.Expr) and _is_text(node.value) and isinstance(node.value.value, str)
    ]
    lines = {path: path.read_text(encoding="utf-8").splitlines() for path, _ in alone}
    assert [
        f"{path}:{line}" for path, line in alone if not lines[path][line - 1].lstrip().startswith(('"""', 'r"""'))
    ] == []


def test_no_text_shows_code_in_place_of_what_it_gives() -> None:
    """A part of a text without its f shows the braces, and what is called between them."""
    assert [
        f"{path}:{node.lineno}"
        for path, nodes in _nodes().items()
        for node in nodes
        if _is_text(node) and isinstance(node.value, str)
        if any(map(_calls, re.findall(r"\{([^{}]+)\}", node.value)))
    ] == []


def test_classes_of_delta_are_called_in_two_places() -> None:
    """An upgrade of Delta has no other place to look at. What a session is started with are settings."""
    files = (ROOT / "spark_jobs" / "sluice_spark").rglob("*.py")
    callers = {path.name for path in files if "apache.spark.sql.delta" in path.read_text(encoding="utf-8")}
    assert callers == {"transaction.py", "delta_calls.py", "session.py"}


@cache
def _nodes() -> dict[Path, list[ast.AST]]:
    """What each file is made of."""
    files = [path for folder in PACKAGES for path in folder.rglob("*.py")]
    return {path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in files}


def _calls(text: str) -> bool:
    try:
        return any(isinstance(node, ast.Call) for node in ast.walk(ast.parse(text.strip(), mode="eval")))
    except SyntaxError:
        return False


def _uncounted(node: ast.AST) -> list[str]:
    """Words for several right behind a value in a text."""
    pairs = pairwise(node.values) if isinstance(node, ast.JoinedStr) else ()
    words = [text.value for value, text in pairs if _is_text(text) and "counted(" not in ast.unparse(value)]
    return [str(word) for word in words if SEVERAL.match(str(word))]


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant)
