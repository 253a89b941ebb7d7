"""What the peers run in: Debezium's jars, and an environment of Python of their own, each fetched once and checked by
recorded hashes.
"""

import subprocess
import sys
from pathlib import Path

from sluice_spark import jars

_HERE = Path(__file__).parent
PYTHON = Path("build/peers")
REQUIREMENTS = Path("requirements/peers.txt")
VERSION = "3.6.1.Final"
DEBEZIUM = jars.JarSet(
    "debezium",
    tuple(f"io.debezium:debezium-{module}:{VERSION}" for module in ("api", "embedded", "connector-postgres")),
    (),
    command="make bench ONLY=PEERS1",
    recorded_in=_HERE,
)


def debezium() -> str:
    """The class path of Debezium's engine."""
    return ":".join(str(path) for path in jars.fetch_set(DEBEZIUM, jars.default_directory() / "debezium"))


def python() -> str:
    """The interpreter whose environment has psycopg2, ADBC and connectorx."""
    made, wanted = PYTHON / "requirements.txt", REQUIREMENTS.read_text(encoding="utf-8")
    found = PYTHON / "bin" / "python"
    if not made.is_file() or made.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PYTHON)], check=True)
        install = [str(found), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(REQUIREMENTS)]
        subprocess.run(install, check=True)
        made.write_text(wanted, encoding="utf-8")
    return str(found)
