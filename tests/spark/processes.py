"""The applier as it runs in production: a process of its own, options in, exit code and log lines out."""

import os
import subprocess
import sys

from spark_jobs.options import ApplyOptions


def run_applier(options: ApplyOptions) -> tuple[int, str]:
    """Exit code and everything written to standard output and error."""
    environment = {**os.environ, "SLUICE_APPLY_OPTIONS": options.to_json()}
    done = subprocess.run([sys.executable, "-m", "spark_jobs"], env=environment, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr
