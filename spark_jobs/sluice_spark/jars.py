"""The jars that Spark needs for Delta, and optionally for S3: fetched once, verified, never looked up
again at start.

Owns the promise that a start needs no network and loads exactly the bytes that were tested: every
jar has its sha256 recorded beside this module, and a missing or different one stops the start with
an error that names the command to fix it. Must not add transitive dependencies: Spark ships its own
Hadoop and Parquet, and the older ones that Delta's description lists would land beside them.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import UsageError

_HERE = Path(__file__).parent
_AWS_SDK = "2.35.4"
FETCH_COMMAND = "python -m sluice_spark.jars fetch"


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that belong together: what to ask the resolver for, what it must leave out, where
    their hashes are recorded, and the command that fetches.
    """

    name: str
    packages: tuple[str, ...]
    excludes: tuple[str, ...]
    command: str = FETCH_COMMAND
    recorded_in: Path = _HERE

    @property
    def checksums(self) -> dict[str, str]:
        """File name to sha256, as recorded."""
        lines = (self.recorded_in / f"{self.name}.sha256").read_text(encoding="ascii").splitlines()
        return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}


DELTA = JarSet(
    "delta",
    ("io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0"),
    (
        "io.delta:delta-kernel-api",
        "io.delta:delta-kernel-defaults",
        "io.delta:delta-kernel-unitycatalog",
        "io.unitycatalog:unitycatalog-client",
        "io.unitycatalog:unitycatalog-hadoop",
        "org.antlr:antlr4-runtime",
        "com.fasterxml.jackson.core:jackson-databind",
        "com.fasterxml.jackson.core:jackson-core",
        "com.fasterxml.jackson.core:jackson-annotations",
    ),
)
S3 = JarSet(
    "s3",
    (
        "org.apache.hadoop:hadoop-aws:3.5.0",
        # hadoop-aws loads it even when it is switched off: without it the first access ends in
        # ClassNotFoundException.
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
        *(
            f"software.amazon.awssdk:{module}:{_AWS_SDK}"
            for module in ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
        ),
    ),
    # The bundle holds every AWS service (654 MB); the modules above are all that S3A uses.
    ("software.amazon.awssdk:bundle", "org.slf4j:slf4j-api", "org.wildfly.openssl:wildfly-openssl"),
    command=f"{FETCH_COMMAND} --s3",
)


def default_directory() -> Path:
    """Where the jars are kept: SLUICE_JARS, else the user's cache."""
    given = os.environ.get("SLUICE_JARS")
    return Path(given) if given else Path.home() / ".cache" / "sluice" / "jars"


def classpath(directory: Path, *, s3: bool) -> list[Path]:
    """The jars that Spark loads, each present and with its recorded hash. Raises UsageError
    naming the first that is not.
    """
    return [path for jar_set in _sets(s3=s3) for path in present(jar_set, directory)]


def present(jar_set: JarSet, directory: Path) -> list[Path]:
    """The jars of one set. Raises UsageError naming the first that is not there or not the
    recorded one.
    """
    found: list[Path] = []
    for name, digest in jar_set.checksums.items():
        path = directory / name
        if not path.is_file():
            raise UsageError(f"the jar {name} is not in {directory}", hint=f"run: {jar_set.command}")
        if _digest(path) != digest:
            raise UsageError(
                f"the jar {path} is not the one that was recorded", hint=f"delete it and run: {jar_set.command}"
            )
        found.append(path)
    return found


def fetch(directory: Path, *, s3: bool) -> None:
    """Puts Spark's jars into `directory`, through its own resolver. Does nothing when they are
    there and right.
    """
    for jar_set in _sets(s3=s3):
        fetch_set(jar_set, directory)


def fetch_set(jar_set: JarSet, directory: Path) -> list[Path]:
    """The same for one set; where its jars are."""
    if any(
        not (directory / name).is_file() or _digest(directory / name) != digest
        for name, digest in jar_set.checksums.items()
    ):
        _resolve(jar_set, directory)
    return present(jar_set, directory)


def _sets(*, s3: bool) -> tuple[JarSet, ...]:
    return (DELTA, S3) if s3 else (DELTA,)


def _resolve(jar_set: JarSet, directory: Path) -> None:
    # An empty program makes spark-submit resolve, copy and end; the resolver's own cache is
    # deleted with the scratch directory.
    import pyspark

    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "nothing.py"
        program.write_text("")
        command = [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            "--master",
            "local[1]",
            "--packages",
            ",".join(jar_set.packages),
            "--exclude-packages",
            ",".join(jar_set.excludes),
            "--conf",
            f"spark.jars.ivy={scratch}/ivy",
            str(program),
        ]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        # A command of ours, without any input.
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
        jars = Path(scratch) / "ivy" / "jars"
        for name, digest in jar_set.checksums.items():
            source = jars / name
            if not source.is_file():
                raise UsageError(
                    f"Spark's resolver did not deliver {name} (spark-submit ended with {done.returncode})",
                    hint="the machine needs Java 17 and a Maven repository, once; or copy the jars "
                    "into the directory by hand",
                )
            if _digest(source) != digest:
                raise UsageError(
                    f"the repository delivered a different {name} than the one recorded",
                    hint="do not use it; ask the administrator of the repository",
                )
            part = directory / f".{name}.part"
            shutil.copyfile(source, part)
            part.replace(directory / name)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: list[str]) -> int:
    """`fetch [--s3]`: returns the exit code."""
    if arguments[:1] != ["fetch"] or not set(arguments[1:]) <= {"--s3"}:
        sys.stderr.write(f"usage: {FETCH_COMMAND} [--s3]\n")
        return UsageError.exit_code
    directory = default_directory()
    try:
        fetch(directory, s3="--s3" in arguments)
    except UsageError as error:
        sys.stderr.write(f"{error}\n{error.hint}\n")
        return error.exit_code
    sys.stdout.write(f"{directory}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
