"""What is generated for monitoring is up to date, and every alert has its runbook."""

import re
import textwrap
from pathlib import Path

import yaml

from deploy.monitoring.alerts import ALERTS
from deploy.monitoring.files import PLAIN_RULES, RUNBOOKS, generated, is_ours
from tests.ops import helm
from tests.support import commands

ROOT = Path(__file__).parents[2]


def test_generated_files_are_what_the_code_says() -> None:
    old = [
        str(path)
        for path, text in generated().items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text
    ]
    assert old == [], "run `make docs`"


def test_nothing_lies_beside_the_generated_files() -> None:
    folders = {path.parent for path in generated() if is_ours(path)}
    assert len(folders) == 2
    found = {path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).iterdir()}
    assert found == {path for path in generated() if is_ours(path)}


def test_there_is_no_runbook_without_an_alert() -> None:
    pages = {path.stem for path in (ROOT / RUNBOOKS).glob("*.md")} - {"README"}
    assert pages == {alert.name for alert in ALERTS}


def test_the_documented_configurations_are_valid(promtool: Path, tmp_path: Path) -> None:
    """Values that the chart takes, and a configuration that Prometheus takes."""
    page = (ROOT / "docs/how-to/monitoring.md").read_text()
    values, configuration = re.findall(r"^```yaml\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    paused = re.findall(r"^  ```yaml\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    rules = tmp_path / "paused.yml"
    rules.write_text(textwrap.dedent(paused[0]))
    done = commands.ended(promtool, "check", "rules", rules)
    assert done.returncode == 0, done.stdout + done.stderr
    helm.render(helm.feature("default") | yaml.safe_load(values))
    written = tmp_path / "prometheus.yml"
    written.write_text(configuration.replace("deploy/monitoring/rules.yml", str(ROOT / PLAIN_RULES)))
    done = commands.ended(promtool, "check", "config", written)
    assert done.returncode == 0, done.stdout + done.stderr
