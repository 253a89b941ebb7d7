"""Expositions of several processes as one: each family once, each series of one pipeline and one process."""

from sluice.telemetry.catalogue import BUILD_INFO, HEARTBEAT
from sluice.telemetry.exposition import merged
from sluice.telemetry.metrics import Metrics, identify


def rendered(pipeline: str, component: str) -> tuple[str, bytes]:
    metrics = Metrics(pipeline, component=component)
    identify(metrics)
    metrics.set(HEARTBEAT, 1, loop="report")
    return component, metrics.render()


def test_a_family_is_announced_once_with_the_series_of_all_processes_behind_it() -> None:
    text = merged([rendered("a", "ingest"), rendered("a", "apply"), rendered("b", "apply")]).decode().splitlines()
    for kind in ("HELP", "TYPE"):
        assert sum(line.startswith(f"# {kind} {HEARTBEAT.name} ") for line in text) == 1
    first = next(number for number, line in enumerate(text) if line.startswith(f"# TYPE {HEARTBEAT.name} "))
    assert [line.partition("{")[0] for line in text[first + 1 : first + 4]] == [HEARTBEAT.name] * 3


def test_two_processes_of_one_pipeline_never_have_the_same_series() -> None:
    text = merged([rendered("a", "ingest"), rendered("a", "apply")]).decode().splitlines()
    series = [line.rpartition(" ")[0] for line in text if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert all('component="' in one and 'pipeline="a"' in one for one in series)


def test_a_series_that_names_its_component_keeps_it() -> None:
    text = merged([("fleet", rendered("a", "apply")[1])]).decode().splitlines()
    (info,) = [line for line in text if line.startswith(f"{BUILD_INFO.name}{{")]
    assert info.count("component=") == 1
    assert 'component="apply"' in info


def test_a_value_that_looks_like_the_label_is_no_label() -> None:
    line = b'# HELP x y\n# TYPE x gauge\nx{pipeline="a",table="no component=here"} 1.0\n'
    assert b'x{component="apply",pipeline="a",table="no component=here"} 1.0' in merged([("apply", line)])
