"""`python -m tests.fuzz [TARGET ...]`: coverage-guided fuzzing, FUZZ_SECONDS (60) in all, from the
saved corpus.

What it finds is kept below build/fuzz/: new inputs that reach new code, and `crash-*` for the one
that made a target fail; the exit code is then not 0. `python -m tests.fuzz corpus` writes
tests/fuzz/corpus again from the recordings.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.fuzz.targets import TARGETS, seeds
from tests.support.manifests import EXAMPLES, written

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
FOUND = Path("build/fuzz")
SECONDS = int(os.environ.get("FUZZ_SECONDS", "60"))
MAX_INPUT_BYTES = 16_384
RSS_LIMIT_MB = 2048
ONE_INPUT_SECONDS = 5
"""A target is linear: an input of 16 KB that takes this long, on the slowest machine, is a finding."""


def write_corpus() -> None:
    recordings = {
        f"{path.parent.name}-{path.stem}": path.read_bytes()
        for path in sorted((HERE.parent / "golden").glob("pg*/*.bin"))
    }
    entries = {body.kind: written(body).encode() for body in EXAMPLES}
    for name in TARGETS:
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for source, data in seeds(name, recordings, entries):
            (folder / source).write_bytes(data)


def main(wanted: list[str]) -> int:
    if wanted == ["corpus"]:
        write_corpus()
        return 0
    unknown = sorted(set(wanted) - set(TARGETS))
    if unknown:
        print(f"no fuzz target {unknown[0]}; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    names = wanted or list(TARGETS)
    failed = []
    for name in names:
        found = FOUND / name
        found.mkdir(parents=True, exist_ok=True)
        limits = {
            "max_total_time": max(1, SECONDS // len(names)),
            "max_len": MAX_INPUT_BYTES,
            "timeout": ONE_INPUT_SECONDS,
            "rss_limit_mb": RSS_LIMIT_MB,
            "artifact_prefix": f"{found}/",
        }
        flags = [f"-{flag}={value}" for flag, value in limits.items()]
        command = [sys.executable, "-m", "tests.fuzz.once", name, str(found), str(CORPUS / name), *flags]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(
        f"fuzz: {', '.join(failed)} failed, see {FOUND}" if failed else f"fuzz: nothing found in {', '.join(names)}",
        file=sys.stderr,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
