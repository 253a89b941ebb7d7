"""The images: well formed, of the versions that everything else names, and an applier that starts
without fetching anything.
"""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml

from sluice.errors import UsageError
from sluice_spark import jars
from tests.ops.helm import CHART
from tests.support import commands
from tests.support.extent import slow

IMAGES = Path("deploy/images")
DOCKERFILES = {name: (IMAGES / f"{name}.Dockerfile").read_text() for name in ("ingest", "applier")}
PROJECT: dict[str, Any] = tomllib.loads(Path("pyproject.toml").read_text())
VERSION: str = PROJECT["project"]["version"]
CHART_FILE: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())


def _locked(file: str) -> dict[str, str]:
    """Package and marker to version, as one lock has it."""
    text = (Path("requirements") / file).read_text()
    return {
        name + (marker or ""): version
        for name, version, marker in re.findall(r"^([a-z0-9-]+)==([^ \\]+)( ; [^\\]+)?", text, re.MULTILINE)
    }


def _extra(name: str) -> str:
    return " ".join(PROJECT["project"]["optional-dependencies"][name])


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_has_nothing_to_say(name: str) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = commands.ended(hadolint, IMAGES / f"{name}.Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(("name", "text"), DOCKERFILES.items())
def test_an_image_is_not_root_has_no_secret_and_stops_by_sigterm(name: str, text: str) -> None:
    last = text.rpartition("\nFROM ")[2]
    assert "USER 185:185" in last
    assert "--uid 185 --gid 185" in last
    assert "STOPSIGNAL SIGTERM" in last
    assert "COPY . " not in text
    assert "ADD " not in text
    assert not re.search(r"(?i)(password|secret|token|access_key)", text)
    for label in ("title", "description", "version", "revision", "licenses"):
        assert f"org.opencontainers.image.{label}=" in last
    assert re.search(r'ENTRYPOINT \["(sluice|/usr/bin/tini)"', last), f"{name} is run without a shell"


def test_bases_are_named_by_full_versions_and_shared() -> None:
    bases = {base for text in DOCKERFILES.values() for base in re.findall(r"^ARG \w+_IMAGE=(\S+)", text, re.MULTILINE)}
    assert len(bases) == 2, "one Python and one Java"
    assert all(re.search(r":\d+\.\d+\.\d+", base) for base in bases)
    for text in DOCKERFILES.values():
        assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) <= {"${PYTHON_IMAGE}", "${JAVA_IMAGE}"}


def test_sluice_has_one_version_everywhere() -> None:
    assert CHART_FILE["appVersion"] == VERSION
    for name, text in DOCKERFILES.items():
        assert f"ARG VERSION={VERSION}\n" in text
        assert f"sluice-{name}:{VERSION} ." in text
        assert f"image: sluice-{name}:{VERSION}\n" in CHART_FILE["annotations"]["artifacthub.io/images"]
        assert f"image: sluice-{name}:{VERSION}\n" in Path("deploy/compose.yaml").read_text()


def test_spark_and_delta_have_one_version_everywhere() -> None:
    spark, delta = _locked("spark.txt")["pyspark"], _locked("spark.txt")["delta-spark"]
    assert f"pyspark=={spark}" in _extra("spark")
    assert f"delta-spark=={delta}" in _extra("spark")
    assert CHART_FILE["annotations"]["sluice/spark-version"] == spark == pyspark.__version__
    assert f"io.delta:delta-spark_{spark.rpartition('.')[0]}_2.13:{delta}" in jars.DELTA.packages
    assert f"io.delta:delta-storage:{delta}" in jars.DELTA.packages
    for jar_set in (jars.DELTA, jars.S3):
        for package in jar_set.packages:
            group, artifact, version = package.split(":")
            assert f"{group}_{artifact}-{version}.jar" in jar_set.checksums
    # What was measured stays as it was measured; every other page speaks of what is shipped.
    pages = "\n".join(
        path.read_text()
        for path in (CHART / "README.md", Path("README.md"), *Path("docs").rglob("*.md"))
        if path.name != "benchmarks.md"
    )
    assert set(re.findall(r"Spark\s+(\d+\.\d+\.\d+)", pages)) == {spark}
    assert set(re.findall(r"Delta\s+(?:Lake )?(\d+\.\d+\.\d+)", pages)) == {delta}


def test_java_and_python_are_those_that_are_tested() -> None:
    java = re.search(r"eclipse-temurin:(\d+)", DOCKERFILES["applier"])
    python = re.search(r"python:(\d+\.\d+)", DOCKERFILES["applier"])
    assert java
    assert python
    assert f'"$${{major:-0}}" -ge {java[1]} ]' in Path("Makefile").read_text()
    assert PROJECT["project"]["requires-python"] == f">={python[1]}"
    assert f"--python-version {python[1]} " in Path("Makefile").read_text()
    assert f"Python {python[1]}, Java {java[1]}," in (CHART / "README.md").read_text()
    assert set(re.findall(r"lib/python(\d+\.\d+)/", DOCKERFILES["applier"])) == {python[1]}


@pytest.mark.parametrize("extra", ["service", "spark"])
def test_an_image_s_lock_is_what_the_tests_run_with(extra: str) -> None:
    image, dev = _locked(f"{extra}.txt"), _locked("dev.txt")
    assert image.items() <= dev.items(), "run `make lock`"
    direct = re.findall(
        r"([a-z0-9-]+)(?:\[[a-z]+\])?[>=]=", " ".join(PROJECT["project"]["dependencies"]) + " " + _extra(extra)
    )
    assert {name for name in direct if not any(locked.split(" ")[0] == name for locked in image)} == set()
    assert not {"pytest", "mypy", "moto"} & image.keys()
    assert f"requirements/{extra}.txt" in DOCKERFILES["ingest" if extra == "service" else "applier"]


def test_everything_that_is_installed_has_a_hash() -> None:
    for text in DOCKERFILES.values():
        for command in re.findall(r"pip (?:install|wheel) [^&\n]*(?:\\\n[^&\n]*)*", text):
            assert "--require-hashes" in command or "--no-index" in command, command
    for file in ("service.txt", "spark.txt", "build.txt"):
        lock = (Path("requirements") / file).read_text()
        for block in re.split(r"\n(?=[a-z])", lock.strip()):
            assert "--hash=sha256:" in block, block[:60]


def test_what_is_read_is_let_through_and_nothing_else_is() -> None:
    ignored = Path(".dockerignore").read_text().splitlines()
    assert "*" in ignored
    allowed = {line.removeprefix("!").rstrip("/") for line in ignored if line.startswith("!")}
    copied = {
        source.rstrip("/")
        for text in DOCKERFILES.values()
        for line in re.findall(r"^COPY (?!--from)(?:--chmod=\d+ )?(.+)$", text, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == allowed
    assert all(Path(path).exists() for path in copied)


def test_the_executor_s_program_is_in_the_spark_that_is_installed() -> None:
    program = re.search(r"org\.apache\.spark\.scheduler\.cluster\.k8s\.\w+", (IMAGES / "entrypoint.sh").read_text())
    assert program
    (archive,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(archive) as opened:
        assert f"{program[0].replace('.', '/')}.class" in opened.namelist()


@pytest.fixture
def image_environment(tmp_path: Path) -> dict[str, str]:
    """What the applier's image and its pod set, with a Java that writes down what it was asked for and ends."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {tmp_path}/asked\nexit 1\n')
    java.chmod(0o755)
    config = tmp_path / "sluice.yaml"
    config.write_text("{pipeline: shop, spool: {uri: 's3://spool'}, lake: {uri: 's3://lake'}}")
    return {
        "SLUICE_CONFIG": str(config),
        "SLUICE_SOURCE__DSN": "postgresql://",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path.cwd()),
        "JAVA_HOME": str(java.parents[1]),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "SLUICE_JARS": str(jars.default_directory()),
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
    }


def _entrypoint(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["/bin/bash", str(IMAGES / "entrypoint.sh"), *arguments]
    return commands.ended(*command, env=environment)


def test_the_applier_starts_with_the_jars_of_the_image_and_fetches_none(
    image_environment: dict[str, str], tmp_path: Path
) -> None:
    try:
        delta, others = (jars.present(one, jars.default_directory()) for one in (jars.DELTA, jars.S3))
    except UsageError as error:
        pytest.skip(f"the jars have not been fetched: {error.hint}")
    done = _entrypoint("apply", environment=image_environment)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert done.returncode != 0, "the Java of this test starts nothing"
    assert f"spark.jars={','.join(str(path) for path in others)}" in asked
    assert f"spark.driver.extraClassPath={':'.join(str(path) for path in delta)}" in asked
    fetching = ("--packages", "--repositories", "spark.jars.packages", "spark.jars.repositories", "spark.jars.ivy")
    assert not [line for line in asked if line.startswith(fetching)]


@slow
def test_an_applier_without_its_jars_says_so_and_starts_nothing(
    image_environment: dict[str, str], tmp_path: Path
) -> None:
    done = _entrypoint("apply", environment={**image_environment, "SLUICE_JARS": str(tmp_path / "empty")})
    assert done.returncode == UsageError.exit_code
    assert "io.delta_delta-spark" in done.stderr
    assert not (tmp_path / "asked").exists()


def test_an_executor_is_started_as_spark_asks(image_environment: dict[str, str], tmp_path: Path) -> None:
    named = {
        "--driver-url": ("SPARK_DRIVER_URL", "spark://CoarseGrainedScheduler@shop-sluice-applier.data.svc:7078"),
        "--executor-id": ("SPARK_EXECUTOR_ID", "3"),
        "--cores": ("SPARK_EXECUTOR_CORES", "2"),
        "--app-id": ("SPARK_APPLICATION_ID", "spark-1"),
        "--hostname": ("SPARK_EXECUTOR_POD_IP", "10.0.0.7"),
        "--resourceProfileId": ("SPARK_RESOURCE_PROFILE_ID", "0"),
        "--podName": ("SPARK_EXECUTOR_POD_NAME", "shop-sluice-executor-3"),
    }
    java = {"SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078", "SPARK_JAVA_OPT_1": "-XX:+UseG1GC -not-split"}
    given = {**java, "SPARK_EXECUTOR_MEMORY": "2g", **dict(named.values())}
    _entrypoint("executor", environment={**image_environment, **given})
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[:4] == ["-Dspark.driver.port=7078", "-XX:+UseG1GC -not-split", "-Xms2g", "-Xmx2g"]
    assert asked[5].split(":") == [f"{image_environment['SPARK_HOME']}/jars/*", f"{image_environment['SLUICE_JARS']}/*"]
    assert dict(zip(asked[7::2], asked[8::2], strict=True)) == {option: value for option, (_, value) in named.items()}


def test_a_missing_variable_of_spark_s_is_named_and_starts_nothing(
    image_environment: dict[str, str], tmp_path: Path
) -> None:
    done = _entrypoint("executor", environment=image_environment)
    assert done.returncode != 0
    assert "SPARK_EXECUTOR_MEMORY" in done.stderr
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("role", ["apply", "driver", "executor"])
def test_a_user_without_a_name_is_told_so_instead_of_an_error_of_java(
    role: str, image_environment: dict[str, str], tmp_path: Path
) -> None:
    names = tmp_path / "bin" / "getent"
    names.parent.mkdir()
    names.write_text("#!/bin/sh\nexit 2\n")
    names.chmod(0o755)
    path = f"{names.parent}:{image_environment['PATH']}"
    done = _entrypoint(role, environment={**image_environment, "PATH": path})
    commands.assert_ended(done, UsageError.exit_code, "run it as 185")
    assert not (tmp_path / "asked").exists()


def test_a_driver_of_the_spark_operator_is_submitted_in_client_mode(
    image_environment: dict[str, str], tmp_path: Path
) -> None:
    program = "local:///opt/sluice/apply.py"
    environment = {**image_environment, "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"}
    _entrypoint(
        "driver", "--properties-file", "/opt/spark/conf/spark.properties", program, "apply", environment=environment
    )
    asked = (tmp_path / "asked").read_text().splitlines()
    assert "spark.driver.bindAddress=10.0.0.7" in asked
    assert asked[asked.index("--deploy-mode") + 1] == "client"
    assert asked[-2:] == [program, "apply"]


def test_the_spark_operator_s_program_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, IMAGES / "apply.py", "version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"sluice {VERSION}\n"


def test_every_other_argument_is_a_command_of_sluice(image_environment: dict[str, str]) -> None:
    assert _entrypoint("version", environment=image_environment).stdout == f"sluice {VERSION}\n"
