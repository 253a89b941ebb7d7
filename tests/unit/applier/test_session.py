"""What Spark is started with, as far as the operator's own settings must not take it away."""

from pathlib import Path

import pytest

from sluice.errors import UsageError
from sluice_spark import class_archive, jars, session
from sluice_spark.options import ApplyOptions

IN_UTC = "-Duser.timezone=UTC"


@pytest.fixture
def delta() -> list[str]:
    try:
        return [str(path) for path in jars.present(jars.DELTA, jars.default_directory())]
    except UsageError as error:
        pytest.skip(f"the jars have not been fetched: {error.hint}")


def _settings(master: str = "local[2]", **conf: str) -> dict[str, str]:
    return session.settings(ApplyOptions("shop", "file:///s", "file:///l", spark_master=master, spark_conf=conf))


@pytest.mark.usefixtures("delta")
@pytest.mark.parametrize("given", [{}, {"spark.driver.extraJavaOptions": "-Xss4m -Duser.timezone=Asia/Tokyo"}])
def test_every_jvm_is_asked_to_be_in_utc_whatever_else_it_is_given(given: dict[str, str]) -> None:
    found = _settings(**given)
    for name in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        assert found[name].split()[-1] == IN_UTC
    assert all(option in found["spark.driver.extraJavaOptions"] for text in given.values() for option in text.split())


@pytest.mark.usefixtures("delta")
def test_the_operators_settings_win_over_tuned_ones_and_never_over_what_exactness_needs() -> None:
    mine = dict.fromkeys([*session._TUNED, *session._REQUIRED, "spark.driver.memory", "spark.x"], "mine")
    found = _settings(**mine)
    assert {name for name in mine if found[name] != "mine"} == session._REQUIRED.keys()


def test_the_driver_has_delta_on_its_class_path_and_executors_elsewhere_get_it_from_there(delta: list[str]) -> None:
    found = _settings(**{"spark.driver.extraClassPath": "/own.jar"})
    assert found["spark.driver.extraClassPath"] == ":".join([*delta, "/own.jar"])
    assert found["spark.jars"] == ""
    assert _settings("k8s://cluster")["spark.jars"] == ",".join(delta)


@pytest.mark.usefixtures("delta")
def test_only_a_lake_on_a_local_disk_writes_its_checksums_by_the_file_system() -> None:
    name = "spark.sql.streaming.checkpointFileManagerClass"
    assert name in _settings()
    assert name not in session.settings(ApplyOptions("shop", "file:///s", "gs://lake"))
    assert not [key for key in _settings() if "logStore" in key or "AbstractFileSystem" in key]


def test_no_archive_of_classes_is_asked_for_where_none_was_made(tmp_path: Path) -> None:
    assert class_archive.archive_options(tmp_path) == []
