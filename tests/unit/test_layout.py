"""The tests are where people look for them, can be read as a list, and start without what they do not need."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
CODE = {"applier": ROOT / "spark_jobs" / "sluice_spark", "support": TESTS / "support"}
"""The folders of unit tests that are not named after a package of the service."""


def test_each_folder_of_unit_tests_is_named_after_a_package_or_a_module() -> None:
    wrong = []
    for folder in {path.parent for path in (TESTS / "unit").rglob("test_*.py")} - {TESTS / "unit"}:
        first, *rest = folder.relative_to(TESTS / "unit").parts
        code = CODE.get(first, ROOT / "service" / "sluice" / first).joinpath(*rest)
        if not (code.is_dir() or code.with_suffix(".py").is_file()):
            wrong.append(str(folder.relative_to(ROOT)))
    assert wrong == []


def test_every_name_of_a_test_is_shorter_than_ninety_characters() -> None:
    files = {path: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    names = [name for text in files.values() for name in re.findall(r"def (test_\w+)", text)]
    assert len(names) > 1000
    assert [name for name in names if len(name) >= 90] == []


def test_pytest_collects_tests_of_the_service_without_importing_pyspark() -> None:
    program = (
        "import sys, pytest\n"
        "status = pytest.main(sys.argv[1:])\n"
        "sys.exit('pyspark was imported' if 'pyspark' in sys.modules else status)\n"
    )
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "tests/unit", "--ignore=tests/unit/applier"]
    command = [sys.executable, "-c", program, *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
