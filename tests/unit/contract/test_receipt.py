"""Only the log can prove that something is durable."""

import ast
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


def _constructs(module: Path) -> bool:
    calls = (node.func for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call))
    names = {call.id if isinstance(call, ast.Name) else getattr(call, "attr", "") for call in calls}
    return "DurableReceipt" in names


def test_a_durable_receipt_is_constructed_by_the_manifest_log_and_nowhere_else() -> None:
    modules = [
        path
        for package in ("service", "spark_jobs", "deploy", "tools")
        for path in (REPOSITORY / package).rglob("*.py")
    ]
    assert [path.relative_to(REPOSITORY).as_posix() for path in modules if _constructs(path)] == [
        "service/sluice/manifest/writer.py"
    ]
