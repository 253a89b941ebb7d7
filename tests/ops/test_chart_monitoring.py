"""The chart's alerts and dashboards, as Helm renders them."""

import copy
import json
from pathlib import Path

import pytest
import yaml

from deploy.monitoring.alerts import ALERTS, DEFAULTS, RECORDINGS
from deploy.monitoring.alerts.inhibitions import INHIBITIONS
from deploy.monitoring.dashboards import DASHBOARDS
from deploy.monitoring.files import PLAIN_RULES
from tests.ops import helm, manifests
from tests.ops.helm import Manifest, Values
from tests.support import commands

DECLARED, PAUSED = "pipeline:sluice_declared", "pipeline:sluice_paused"
ALL = {alert.name for alert in ALERTS}


def _rule(values: Values) -> Manifest:
    (rule,) = manifests.of_kind(helm.render(values), "PrometheusRule")
    return rule


def _with(values: Values, **changed: object) -> Values:
    changing = copy.deepcopy(values)
    changing["metrics"]["prometheusRule"].update(changed)
    return changing


def _by_name(rule: Manifest) -> dict[str, dict[str, object]]:
    """In their order. Only the rules of one group are evaluated in it. (Prometheus: Recording rules.)"""
    [group] = rule["spec"]["groups"]
    return {found.get("alert") or found["record"]: found for found in group["rules"]}


def test_prometheus_accepts_the_rules_of_the_chart(promtool: Path, tmp_path: Path) -> None:
    written = tmp_path / "rules.yml"
    written.write_text(json.dumps({"groups": _rule(helm.feature("prometheus-rule"))["spec"]["groups"]}))
    done = commands.ended(promtool, "check", "rules", written)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_has_every_rule_but_those_that_are_excluded_and_every_alert_links_its_runbook() -> None:
    rules = _by_name(_rule(helm.feature("prometheus-rule")))
    recordings = {recording.name for recording in RECORDINGS}
    assert rules.keys() == ALL - {"SluiceApplierDown"} | {DECLARED} | recordings
    for name in rules.keys() & ALL:
        annotations = rules[name]["annotations"]
        assert isinstance(annotations, dict)
        assert annotations["runbook_url"] == f"https://wiki.example.com/sluice/{name}.md"


def test_with_default_thresholds_the_chart_says_what_the_plain_rules_say_of_one_pipeline() -> None:
    ours = _by_name(_rule(_with(helm.feature("prometheus-rule"), thresholds={}, excludeRules=[], runbookUrl="")))
    assert next(iter(ours)) == DECLARED
    assert ours.pop(DECLARED) == {"record": DECLARED, "expr": "vector(1)", "labels": {"pipeline": "shop"}}
    plain = {
        found.get("alert") or found["record"]: found
        for group in yaml.safe_load(Path(PLAIN_RULES).read_text())["groups"]
        for found in group["rules"]
    }
    assert ours.keys() == plain.keys()
    assert list(ours)[: len(RECORDINGS)] == [recording.name for recording in RECORDINGS], "alerts read what is recorded"
    for name, rule in ours.items():
        scoped = _numbers(str(rule.pop("expr")).replace('{ pipeline="shop",', "{").replace('{ pipeline="shop"}', ""))
        assert scoped == _numbers(str(plain[name].pop("expr")))
        labels = rule.get("labels")
        if isinstance(labels, dict):
            assert labels.pop("namespace") == "data"
        assert rule == plain[name]


def _numbers(expression: str) -> str:
    """Helm writes large numbers with an exponent."""
    for default in DEFAULTS.values():
        expression = expression.replace(f"{float(default):e}".rstrip("0"), str(default))
    for default in sorted(DEFAULTS.values(), reverse=True):
        mantissa, _, exponent = f"{float(default):.16e}".partition("e")
        expression = expression.replace(f"{mantissa.rstrip('0').rstrip('.')}e+{int(exponent):02d}", str(default))
    return expression


def test_thresholds_come_from_values() -> None:
    rules = _by_name(_rule(helm.feature("prometheus-rule")))
    assert "> 20\n" in str(rules["SluiceLagHigh"]["expr"]) or "> 20)" in str(rules["SluiceLagHigh"]["expr"])
    assert "(1 - 0.995)" in str(rules["SluiceFreshnessBurnFast"]["expr"])


def test_rules_watch_the_release_s_own_pipeline_or_all_where_its_name_is_not_known() -> None:
    values = helm.feature("prometheus-rule")
    assert 'sluice_problems{ pipeline="shop",code="slot.lost"}' in str(
        _by_name(_rule(values))["SluiceSlotLost"]["expr"]
    )
    values["existingConfigMap"] = {"name": "elsewhere"}
    values["config"] = {}
    assert 'sluice_problems{ pipeline!="",code="slot.lost"}' in str(_by_name(_rule(values))["SluiceSlotLost"]["expr"])


@pytest.mark.parametrize(
    ("paused", "parts"),
    [({"paused": True}, ["ingest", "applier"]), ({"applier": {"paused": True}}, ["applier"]), ({}, [])],
)
def test_what_is_paused_is_declared_so_and_alerts_of_it_are_silent(paused: Values, parts: list[str]) -> None:
    rule = _rule({**helm.feature("prometheus-rule"), **paused})
    declared = [each for group in rule["spec"]["groups"] for each in group["rules"] if each.get("record") == PAUSED]
    assert [each["labels"] for each in declared] == [{"pipeline": "shop", "part": part} for part in parts]


def test_the_chart_s_inhibitions_are_those_that_alertmanager_was_tested_with() -> None:
    values = helm.feature("alertmanager")
    (found,) = manifests.of_kind(helm.render(values), "AlertmanagerConfig")
    said = [
        (one["sourceMatch"][0]["value"], tuple(one["targetMatch"][0]["value"].split("|")), one["equal"])
        for one in found["spec"]["inhibitRules"]
    ]
    assert said == [(one.source, one.targets, ["pipeline"]) for one in INHIBITIONS]


@pytest.mark.parametrize(
    "wrong",
    [
        {"excludeRules": ["SluiceNoSuchAlert"]},
        {"thresholds": {"lagSeconds": 3}},
        {"thresholds": {"reconnects": "many"}},
    ],
)
def test_a_mistyped_rule_or_threshold_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(helm.Refused):
        helm.render(_with(helm.feature("prometheus-rule"), **wrong))


def test_dashboards_are_inserted_letter_by_letter() -> None:
    values = helm.feature("dashboards")
    values["metrics"]["dashboards"]["namespace"] = "monitoring"
    found = [
        each
        for each in manifests.of_kind(helm.render(values), "ConfigMap")
        if each["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]
    assert {each["metadata"]["namespace"] for each in found} == {"monitoring"}
    assert all(each["metadata"]["annotations"]["grafana_folder"] == "Sluice" for each in found)
    assert {key: json.loads(text) for each in found for key, text in each["data"].items()} == {
        f"{board.uid}.json": board.to_json() for board in DASHBOARDS
    }
