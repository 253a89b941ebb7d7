"""Every alert, as Prometheus itself evaluates it."""

import json
import re
from pathlib import Path

import pytest
import yaml

from deploy.monitoring.alerts import ALERTS, DEFAULTS, RECORDINGS, THRESHOLDS
from deploy.monitoring.files import PLAIN_RULES
from deploy.monitoring.model import SCOPE, thresholds_of
from deploy.monitoring.promql import Not, Selector
from sluice.health import verdict
from sluice.telemetry import catalogue
from tests.ops.rule_cases import CASES, Case
from tests.support import commands
from tests.support.extent import slow

ROOT = Path(__file__).parents[2]
NAMES = [alert.name for alert in ALERTS]
DEAR = {"SluiceFreshnessBurnSlow", "SluiceFreshnessBurnFast", "SluiceIngestDown"}
"""Those that look back for hours and days. The recorded incidents have the last one as well."""


def _rules_of(alert: str, directory: Path) -> Path:
    """The rules as they are, without the other alerts, and without recordings where none is read:
    promtool evaluates whatever is there, minute by minute.
    """
    [group] = yaml.safe_load((ROOT / PLAIN_RULES).read_text())["groups"]
    recordings = [rule for rule in group["rules"] if "record" in rule]
    [chosen] = [rule for rule in group["rules"] if rule.get("alert") == alert]
    rules = [*recordings, chosen] if "pipeline:" in chosen["expr"] else [chosen]
    written = directory / "rules.yml"
    written.write_text(json.dumps({"groups": [{**group, "rules": rules}]}))
    return written


def _unit_test(alert: str, cases: tuple[Case, ...], directory: Path) -> str:
    """promtool's own format. What fires is asked as a series, which leaves annotations to a test of
    their own.
    """
    return json.dumps(
        {
            "rule_files": [str(_rules_of(alert, directory))],
            "evaluation_interval": f"{max(case.step_minutes for case in cases)}m",
            "tests": [
                {
                    "name": f"{alert}: {case.what}",
                    "interval": f"{case.step_minutes}m",
                    "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
                    "promql_expr_test": [
                        {
                            "expr": f'sum without (severity) (ALERTS{{alertname="{alert}",alertstate="firing"}})',
                            "eval_time": f"{case.minutes}m",
                            "exp_samples": []
                            if case.labels is None
                            else [{"labels": _firing(alert, case.labels), "value": 1}],
                        }
                    ],
                }
                for case in cases
            ],
        }
    )


def _firing(alert: str, labels: dict[str, str]) -> str:
    complete = {"alertname": alert, "alertstate": "firing", **labels}
    return "{" + ", ".join(f'{name}="{value}"' for name, value in complete.items()) + "}"


def _run(promtool: Path, *arguments: str) -> tuple[int, str]:
    done = commands.ended(promtool, *arguments)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("alert", [pytest.param(name, marks=slow if name in DEAR else ()) for name in NAMES])
def test_an_alert_fires_when_it_should_and_only_then(alert: str, promtool: Path, tmp_path: Path) -> None:
    cases = CASES[alert]
    assert any(case.labels is not None for case in cases), "no case that fires"
    assert any(case.labels is None for case in cases), "no case that stays quiet"
    written = tmp_path / "cases.yml"
    written.write_text(_unit_test(alert, cases, tmp_path))
    status, said = _run(promtool, "test", "rules", str(written))
    assert status == 0, said


@pytest.mark.parametrize("alert", NAMES)
def test_what_an_alert_says_is_filled_in(alert: str, promtool: Path, tmp_path: Path) -> None:
    """promtool shows the annotations of an alert that nobody expected."""
    case = next(case for case in CASES[alert] if case.labels is not None)
    unexpected = json.loads(_unit_test(alert, (case,), tmp_path))
    unexpected["tests"][0]["promql_expr_test"] = []
    unexpected["tests"][0]["alert_rule_test"] = [
        {"eval_time": f"{case.minutes}m", "alertname": alert, "exp_alerts": []}
    ]
    written = tmp_path / "unexpected.yml"
    written.write_text(json.dumps(unexpected))
    status, said = _run(promtool, "test", "rules", str(written))
    assert status != 0
    assert "Annotations:" in said
    assert f"docs/runbooks/{alert}.md" in said
    for problem in ("no value", "error", "{{", "%!", "NaN"):
        assert problem not in said.partition("Annotations:")[2], said


def test_verdict_and_alerts_on_the_same_quantity_agree_unless_configured_otherwise() -> None:
    of_the_verdict = {
        "walHeadroomWarningPercent": 100 * verdict.LOW_HEADROOM,
        "walHeadroomCriticalPercent": 100 * verdict.SCARCE_HEADROOM,
        "walRetainedBytes": verdict.UNLIMITED_BYTES,
        "lagWarningSeconds": verdict.FLUSH_LAG_SECONDS,
        "lagCriticalSeconds": verdict.FLUSH_LAG_CRITICAL_SECONDS,
        "applySilenceSeconds": verdict.FAILING_CRITICAL_SECONDS,
        "freshnessTargetSeconds": verdict.LAKE_LAG_SECONDS,
        "preparedTransactionSeconds": verdict.PREPARED_SECONDS,
        "reportAgeSeconds": verdict.UNREAD_SECONDS,
    }
    assert {name: DEFAULTS[name] for name in of_the_verdict} == of_the_verdict


def test_thresholds_are_named_once_and_all_used() -> None:
    texts = [recording.expression for recording in RECORDINGS]
    texts += [text for alert in ALERTS for text in (alert.expression, alert.summary, alert.description)]
    used = {name for text in texts for name in thresholds_of(text)}
    assert used == {threshold.name for threshold in THRESHOLDS}
    assert len(DEFAULTS) == len(THRESHOLDS)


def test_every_selector_can_be_limited_to_one_pipeline() -> None:
    for text in [alert.expression for alert in ALERTS] + [recording.expression for recording in RECORDINGS]:
        found = re.findall(r"\b(?:pipeline:)?sluice_\w+(?::\w+)?", text)
        assert found, text
        assert len(found) == text.count("{" + SCOPE), text


def test_a_selector_refuses_what_the_catalogue_does_not_know() -> None:
    choose = Selector('pipeline="shop"')
    assert (
        choose(catalogue.SLOT_STATUS, status=("reserved", "lost"))
        == 'sluice_slot_wal_status{pipeline="shop",status=~"reserved|lost"}'
    )
    assert choose(catalogue.ROWS, schema=Not(("audit",))) == 'sluice_rows_total{pipeline="shop",schema!~"audit"}'
    with pytest.raises(ValueError, match="no status vanished"):
        choose(catalogue.SLOT_STATUS, status="vanished")
    with pytest.raises(ValueError, match="no shape round"):
        choose(catalogue.SLOT_STATUS, shape="round")
    with pytest.raises(ValueError, match="is a histogram"):
        choose(catalogue.EVENT_LOOP_LAG)


def test_no_plain_alert_is_evaluated_before_what_it_reads() -> None:
    """Only the rules of one group are evaluated in their order. (Prometheus: Recording rules.)"""
    [group] = yaml.safe_load((ROOT / PLAIN_RULES).read_text())["groups"]
    assert [rule.get("record") or rule["alert"] for rule in group["rules"]] == [one.name for one in RECORDINGS] + NAMES
