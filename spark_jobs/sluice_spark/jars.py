"""The jars that Spark needs for Delta, and optionally for S3: fetched once, verified, never looked up
again at start.

Owns the promise that Spark loads exactly the bytes that were tested: every jar has its sha256
recorded beside this module, and a missing or different one stops the start with an error that names
the command to fix it. `ensure` fetches what is missing in the user's own cache. A folder that an
operator named is the operator's: a start never writes there. Must not add transitive dependencies:
Spark ships its own Hadoop and Parquet, and the older ones that Delta's description lists would land
beside them.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from sluice.errors import UsageError

_HERE = Path(__file__).parent
_AWS_SDK = "2.35.4"
FETCH_COMMAND = "sluice jars fetch"
_DIRECTORY = "SLUICE_JARS"
_LOOK_SECONDS = 0.25
_LINE_SECONDS = 2.0
_SILENT_SECONDS = 120.0
"""A repository that sends nothing for so long has been lost: Spark's resolver would wait for it without an end."""
_ELSEWHERE = (
    f"the machine needs Java 17 and a Maven repository once; or run `{FETCH_COMMAND} --to DIR` where there "
    f"is one, copy DIR here and set {_DIRECTORY} to it"
)


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that belong together: what to ask the resolver for, what it must leave out, where
    their hashes are recorded, the command that fetches, and how many bytes they are.
    """

    name: str
    packages: tuple[str, ...]
    excludes: tuple[str, ...]
    command: str = FETCH_COMMAND
    recorded_in: Path = _HERE
    size_bytes: int = 0

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
    size_bytes=9_629_779,
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
    size_bytes=18_347_029,
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a fetch is: bytes that have come, of all."""

    fetched_bytes: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.fetched_bytes / 1e6:.1f} of {self.size_bytes / 1e6:.1f} MB"


Report = Callable[[Progress], None]


def default_directory() -> Path:
    """Where the jars are kept: SLUICE_JARS, else the user's cache."""
    given = os.environ.get(_DIRECTORY)
    return Path(given) if given else Path.home() / ".cache" / "sluice" / "jars"


def fetched_at_start(directory: Path) -> bool:
    """Whether a start puts missing jars into `directory`: only into the user's own cache."""
    return not os.environ.get(_DIRECTORY) and directory == default_directory()


def missing(directory: Path, *, s3: bool) -> list[str]:
    """Names of jars that are not in `directory`."""
    return [name for one in _sets(s3=s3) for name in one.checksums if not (directory / name).is_file()]


def ensure(directory: Path, *, s3: bool, report: Report, stopped: Callable[[], bool]) -> None:
    """Fetches what is missing in `directory`, where a start may do so. Returns early once `stopped`. Raises
    UsageError.
    """
    if not fetched_at_start(directory):
        return
    for jar_set in _sets(s3=s3):
        if any(not (directory / name).is_file() for name in jar_set.checksums):
            _resolve(jar_set, directory, report=report, stopped=stopped)


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


def fetch(directory: Path, *, s3: bool, report: Report = lambda _: None) -> None:
    """Puts Spark's jars into `directory`, through its own resolver. Does nothing when they are
    there and right. Raises UsageError.
    """
    for jar_set in _sets(s3=s3):
        fetch_set(jar_set, directory, report=report)


def fetch_set(jar_set: JarSet, directory: Path, *, report: Report = lambda _: None) -> list[Path]:
    """The same for one set; where its jars are."""
    if any(
        not (directory / name).is_file() or _digest(directory / name) != digest
        for name, digest in jar_set.checksums.items()
    ):
        _resolve(jar_set, directory, report=report, stopped=lambda: False)
    return present(jar_set, directory)


def _sets(*, s3: bool) -> tuple[JarSet, ...]:
    return (DELTA, S3) if s3 else (DELTA,)


def _resolve(jar_set: JarSet, directory: Path, *, report: Report, stopped: Callable[[], bool]) -> None:
    # An empty program makes spark-submit resolve, copy and end; the resolver's own cache is
    # deleted with the scratch directory.
    import pyspark

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {directory} cannot be made: {error.strerror}", hint=_ELSEWHERE) from error
    with tempfile.TemporaryDirectory() as scratch:
        program, ivy = Path(scratch) / "nothing.py", Path(scratch) / "ivy"
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
            f"spark.jars.ivy={ivy}",
            str(program),
        ]
        ended = _watched(command, ivy, size_bytes=jar_set.size_bytes, report=report, stopped=stopped)
        if ended is None:
            return
        jars = ivy / "jars"
        for name, digest in jar_set.checksums.items():
            source = jars / name
            if not source.is_file():
                raise UsageError(
                    f"Spark's resolver did not deliver {name} (spark-submit ended with {ended})", hint=_ELSEWHERE
                )
            if _digest(source) != digest:
                raise UsageError(
                    f"the repository delivered a different {name} than the one recorded",
                    hint="do not use it; ask the administrator of the repository",
                )
        for name in jar_set.checksums:
            _put(jars / name, directory)


def _watched(
    command: list[str], ivy: Path, *, size_bytes: int, report: Report, stopped: Callable[[], bool]
) -> int | None:
    """Runs the resolver, whose folder is `ivy`, and reports what has come. Its exit code, None once `stopped`. Raises
    UsageError when nothing comes any more.
    """
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    # A command of ours, without any input, and with a group of its own: Ctrl-C is for this process to judge.
    process = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    last, changed = -1, time.monotonic()
    try:
        while process.poll() is None:
            if stopped():
                return None
            come, jars = _come(ivy)
            if come != last:
                last, changed = come, time.monotonic()
            if time.monotonic() - changed > _SILENT_SECONDS:
                raise UsageError(f"no byte of a jar has come for {_SILENT_SECONDS:.0f} s", hint=_ELSEWHERE)
            report(Progress(min(jars, size_bytes), size_bytes))
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode


def _come(ivy: Path) -> tuple[int, int]:
    """Bytes in the resolver's cache: of everything, and of jars, also of such as are still coming."""
    everything = jars = 0
    for path in (ivy / "cache").rglob("*"):
        with suppress(OSError):  # a file that got its name meanwhile
            if path.is_file():
                size = path.stat().st_size
                everything += size
                jars += size if ".jar" in path.suffixes else 0
    return everything, jars


def _put(source: Path, directory: Path) -> None:
    """Two processes may do this at once: each writes a file of its own, and both are the same."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=f".{source.name}.", delete=False) as part:
            part.write(source.read_bytes())
        path = Path(part.name)
        path.chmod(0o644)
        path.replace(directory / source.name)
    except OSError as error:
        raise UsageError(f"{directory} cannot be written to: {error.strerror}", hint=_ELSEWHERE) from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def every(seconds: float, show: Report) -> Report:
    """Calls `show` with the first progress, and then once in so many seconds."""
    due = 0.0

    def report(progress: Progress) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + seconds
            show(progress)

    return report


@contextmanager
def _shown(directory: Path) -> Iterator[Report]:
    """Progress on stderr: a bar on a terminal, lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        sys.stderr.write(f"fetching jars into {directory}\n")
        yield every(_LINE_SECONDS, lambda progress: print(f"fetching jars: {progress}", file=sys.stderr, flush=True))
        return
    columns = (TextColumn("fetching jars"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("jars", total=None)
        yield lambda progress: bar.update(task, completed=progress.fetched_bytes, total=progress.size_bytes)


def main(arguments: list[str]) -> int:
    """`fetch [--s3] [--to DIR]`: returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sluice_spark.jars")
    parser.add_argument("what", choices=["fetch"])
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--to", type=Path)
    given = parser.parse_args(arguments)
    directory: Path = given.to or default_directory()
    try:
        with _shown(directory) as report:
            fetch(directory, s3=given.s3, report=report)
    except UsageError as error:
        sys.stderr.write(f"{error}\n{error.hint}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    sys.stdout.write(f"{directory}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
