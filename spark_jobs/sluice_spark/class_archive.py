"""An archive of the classes that a start of Spark loads: they are mapped into the JVM instead of
being read from jars, checked and linked one by one, which takes a third of a start's CPU.

Owns that an archive is never needed and never decides anything. The JVM compares it with itself and
with the jars on its class path, and goes on without it when they differ. It is made once per Java,
Spark and set of jars, beside the jars, by `python -m sluice_spark.class_archive`. (Java: java(1),
Application Class-Data Sharing.)
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from sluice.errors import UsageError
from sluice_spark import jars

_NAME = "classes-{key}.jsa"
_KEY_LENGTH = 16
_PROGRAM = """
import sys
from pathlib import Path
from sluice.store.opening import open_store
from sluice_spark import session
from sluice_spark.options import ApplyOptions
from sluice_spark.lake.warm_up import warm_up

folder, options = Path(sys.argv[1]), sys.argv[2]
uri = folder.as_uri()
conf = {"spark.driver.extraJavaOptions": options}
spark = session.start(ApplyOptions("classes", uri, uri, spark_master="local[2]", driver_memory="1g", spark_conf=conf))
store = open_store(uri, options={})
warm_up(session.private(spark), str(folder / "table"), store=store, folder="table/", require_owner=lambda: None)
# A table of its own is read: the vectors of the other one are in its log alone.
spark.range(8).write.format("delta").save(str(folder / "read"))
spark.read.format("delta").load(str(folder / "read")).groupBy("id").count().collect()
spark.stop()
"""


def archive_options(directory: Path) -> list[str]:
    """Options for a JVM that has Delta's jars of `directory` first on its class path; none where no
    archive was made for it.
    """
    path = _path(directory)
    # Without these two lines the JVM would say on every start why it does not use an archive.
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:cds*=off"] if path and path.is_file() else []


def make(directory: Path) -> Path:
    """Makes the archive for the jars in `directory`, if there is none, and removes those of other
    versions; where it is. Raises UsageError.
    """
    path = _path(directory)
    if path is None:
        raise UsageError("no java was found", hint="install a Java 17 runtime, set JAVA_HOME")
    if not path.is_file():
        with tempfile.TemporaryDirectory() as scratch:
            made = Path(scratch) / "classes.jsa"
            options = f"-XX:ArchiveClassesAtExit={made} -Xlog:cds*=off"
            command = [sys.executable, "-c", _PROGRAM, scratch, options]
            environment = {**os.environ, "SLUICE_JARS": str(directory)}
            # A command of ours, without any input.
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
            if done.returncode or not made.is_file():
                raise UsageError(
                    f"Java made no archive of its classes (the process ended with {done.returncode})",
                    hint="Spark works without it, and starts more slowly",
                )
            part = directory / f".{path.name}.part"
            shutil.copyfile(made, part)
            part.replace(path)
    for other in directory.glob(_NAME.format(key="*")):
        if other != path:
            other.unlink()
    return path


def _path(directory: Path) -> Path | None:
    """Where the archive for these jars and the Java of this process belongs, None without Java."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        return None
    release = Path(java).resolve().parents[1] / "release"
    facts = [
        str(Path(java).resolve()),
        release.read_text(encoding="utf-8") if release.is_file() else "",
        version("pyspark"),
        *(f"{name} {digest}" for name, digest in sorted(jars.DELTA.checksums.items())),
    ]
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:_KEY_LENGTH]
    return directory / _NAME.format(key=key)


def main() -> int:
    """Makes the archive beside the jars. Returns the exit code."""
    try:
        sys.stdout.write(f"{make(jars.default_directory())}\n")
    except UsageError as error:
        sys.stderr.write(f"{error}\n{error.hint}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
