"""The same tests on every major of PostgreSQL: `python -m tests.matrix --majors "14 18"
tests/integration -k name`.

One run of pytest for each major, chosen by TEST_PG_MAJOR; one line for each at the end, and a
status that is 0 only when all of them passed. A major that this machine cannot have is left out, with
the reason. Whatever is not `--majors` goes to pytest.
"""

import argparse
import os
import subprocess
import sys

from tools.local.binaries import MAJOR_VARIABLE, bin_dir, supported_majors, why_not_here


def run(major: int, arguments: list[str]) -> tuple[bool, str]:
    """Whether all tests passed, and pytest's own last line."""
    server = subprocess.run(
        [bin_dir(major) / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    print(f"\n=== PostgreSQL {server}", flush=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    last = ""
    with subprocess.Popen(
        command, env={**os.environ, MAJOR_VARIABLE: str(major)}, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        for line in tests.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return tests.returncode == 0, f"{server}: {last.strip('= ')}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--majors", default=" ".join(map(str, supported_majors())))
    chosen, arguments = parser.parse_known_args()
    majors = [int(major) for major in chosen.majors.split()]
    outcomes = [run(major, arguments) for major in majors if not why_not_here(major)]
    print("\n=== all majors")
    for passed, line in outcomes:
        print(f"{'passed' if passed else 'FAILED'}  PostgreSQL {line}")
    for major in majors:
        if reason := why_not_here(major):
            print(f"skipped PostgreSQL {major}: {reason}")
    return 0 if all(passed for passed, _ in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
