"""What is generated for monitoring is up to date, and every alert has its runbook."""

import re
import shutil
import textwrap
from pathlib import Path

import yaml

from deploy.monitoring.alerts import ALERTS
from deploy.monitoring.files import PLAIN_RULES, RUNBOOKS, is_ours
from tests.ops import helm
from tests.support import commands
from tools.docs import __main__ as docs

ROOT = Path(__file__).parents[2]


def test_a_generated_file_that_is_old_missing_or_left_over_is_named_and_made_right(tmp_path: Path) -> None:
    wanted = docs.generated(ROOT) | docs.listed()
    assert docs.old(ROOT, wanted) == []
    for path, text in wanted.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    shutil.copy(ROOT / "helm/sluice/values.yaml", tmp_path / "helm/sluice")
    (tmp_path / "docs/cli.md").write_text("old")
    (tmp_path / PLAIN_RULES).unlink()
    left_over = next(path for path in wanted if is_ours(path)).with_name("Removed.yaml")
    (tmp_path / left_over).write_text("")
    said = docs.main(tmp_path, check=True)
    assert [line.split()[0] for line in said.splitlines()] == ["docs/cli.md", str(PLAIN_RULES), str(left_over)]
    assert docs.main(tmp_path, check=False) == ""
    assert docs.main(tmp_path, check=True) == ""
    assert not (tmp_path / left_over).exists()


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
