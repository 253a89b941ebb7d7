"""`python -m tests.chaos`: stories of chaos, one after the other, each with a line of JSON; totals
at the end. See docs/reliability.md.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.chaos import report, storefaults
from tests.chaos.outcome import Outcome
from tests.chaos.seeded import Story
from tools.local.postgres import temporary_server
from tools.local.s3 import running_s3

RESULTS = Path("build/chaos/results.jsonl")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Seeded chaos. SEED=123 in the environment repeats that seed alone."
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many stories")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="begin no story after so many minutes; 0 for no limit"
    )
    parser.add_argument("--first", type=int, default=None, help="count seeds up from this one instead of drawing them")
    parser.add_argument(
        "--applier-every", type=int, default=10, help="one story in so many has an applier too; 0 for none"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where a line for each story is appended")
    parser.add_argument("--keep", action="store_true", help="keep the folders of stories that failed")
    chosen = parser.parse_args(arguments)
    outcomes = _run(chosen, _seeds(chosen))
    failed = [one for one in outcomes if one.failed]
    said = [f"SEED={one.seed} failed: {one.error.splitlines()[0] if one.error else ''}" for one in failed]
    print(report.rendered(asdict(one) for one in outcomes), *said, sep="\n", flush=True)
    return 1 if failed else 0


def _seeds(chosen: argparse.Namespace) -> list[int]:
    if only := os.environ.get("SEED"):
        return [int(only)]
    if chosen.first is not None:
        return list(range(chosen.first, chosen.first + chosen.seeds))
    return [random.randrange(10**9) for _ in range(chosen.seeds)]


def _run(chosen: argparse.Namespace, seeds: list[int]) -> list[Outcome]:
    began = time.monotonic()
    commit = _commit()
    outcomes: list[Outcome] = []
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    with temporary_server() as server, running_s3() as s3, chosen.results.open("a", encoding="utf-8") as results:
        for seed in seeds:
            if chosen.minutes and time.monotonic() - began > chosen.minutes * 60:
                break
            folder = Path(tempfile.mkdtemp(prefix=f"sluice-chaos-{seed}-"))
            print(f"SEED={seed}", flush=True)
            applied = bool(chosen.applier_every) and seed % chosen.applier_every == 0
            with (
                storefaults.small_disk(folder / "disk") if seed % 3 else storefaults.bucket(folder / "s3", s3) as place
            ):
                outcome = Story(seed, server, folder, applier=applied, place=place).run()
                outcome.commit = commit
                if outcome.failed and chosen.keep:
                    shutil.copytree(folder, f"{folder}-kept", dirs_exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            print(outcome.line(), flush=True)
            results.write(outcome.line() + "\n")
            results.flush()
            outcomes.append(outcome)
            if server.pid is None:
                server.start()
    return outcomes


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
