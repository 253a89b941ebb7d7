"""The same tests on every major of PostgreSQL: `python -m tests.matrix --majors "14 18" tests/integration -k name`;
or in every language of a server that has translations: `--languages "de_DE ja_JP"`.

One run of pytest for each, chosen by TEST_PG_MAJOR and TEST_PG_LANGUAGE; one line for each at the end, and a
status that is 0 only when all of them passed. A major or a language that this machine cannot have is left out, with
the reason. Whatever is no option of ours goes to pytest.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.languages import MissingLocale, locales, translated_programs
from tools.local.binaries import MAJOR_VARIABLE, bin_dir, programs_variable, supported_majors, why_not_here
from tools.local.postgres import LANGUAGE_VARIABLE


def run(major: int, arguments: list[str], more: Mapping[str, str] | None = None) -> tuple[bool, str]:
    """Whether all tests passed, and pytest's own last line. `more` are variables of their environment."""
    environment = {**os.environ, MAJOR_VARIABLE: str(major), **(more or {})}
    programs = Path(environment.get(programs_variable(major)) or bin_dir(major))
    shown = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    server = " ".join((shown.split()[2], environment.get(LANGUAGE_VARIABLE, ""))).strip()
    print(f"\n=== PostgreSQL {server}", flush=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    last = ""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        for line in tests.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return tests.returncode == 0, f"{server}: {last.strip('= ')}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--majors", default=" ".join(map(str, supported_majors())))
    parser.add_argument("--languages", default="")
    chosen, arguments = parser.parse_known_args()
    if chosen.languages:
        return in_languages(chosen.languages.split(), arguments)
    majors = [int(major) for major in chosen.majors.split()]
    outcomes = [run(major, arguments) for major in majors if not why_not_here(major)]
    print("\n=== all majors")
    for passed, line in outcomes:
        print(f"{'passed' if passed else 'FAILED'}  PostgreSQL {line}")
    for major in majors:
        if reason := why_not_here(major):
            print(f"skipped PostgreSQL {major}: {reason}")
    return 0 if all(passed for passed, _ in outcomes) else 1


def in_languages(languages: list[str], arguments: list[str]) -> int:
    """On the newest server here that has translations."""
    programs = translated_programs()
    try:
        with locales() as folder:
            if not programs:
                raise MissingLocale("no server here has translations; Debian's packages have them")
            major = int(programs[-1].parent.name)
            own = {"LOCPATH": folder, programs_variable(major): str(programs[-1])}
            outcomes = [run(major, arguments, {**own, LANGUAGE_VARIABLE: language}) for language in languages]
    except MissingLocale as missing:
        print(f"skipped all languages: {missing}")
        return 0
    print("\n=== all languages")
    for passed, line in outcomes:
        print(f"{'passed' if passed else 'FAILED'}  PostgreSQL {line}")
    return 0 if all(passed for passed, _ in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
