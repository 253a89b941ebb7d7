"""Who is notified: Alertmanager itself, with the configuration that is shipped."""

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.monitoring.alerts import ALERTS
from deploy.monitoring.alerts.inhibitions import INHIBITIONS
from deploy.monitoring.files import ALERTMANAGER
from deploy.monitoring.model import Alert
from tests.support import commands
from tests.support.answers import is_well
from tools.local.child import Child
from tools.local.ports import free_port
from tools.local.tools import CACHE

ROOT = Path(__file__).parents[2]
SEVERITY = {alert.name: alert.severity for alert in ALERTS}
SOURCES = {one.source for one in INHIBITIONS}


@pytest.fixture(scope="module")
def url(alertmanager: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("alertmanager")
    address = f"127.0.0.1:{free_port()}"
    child = Child("Alertmanager", last_signal=signal.SIGKILL, log=directory / "alertmanager.log")
    command = [
        *_with_its_templates(alertmanager),
        str(alertmanager),
        f"--config.file={ROOT / ALERTMANAGER}",
        f"--storage.path={directory}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    child.start(command, is_ready=lambda _pid: is_well(f"http://{address}/-/ready"), directory=directory)
    try:
        yield f"http://{address}"
    finally:
        child.stop(signal.SIGTERM, patience_seconds=20)


def test_alertmanager_silences_what_follows_from_a_cause_and_nothing_else(url: str) -> None:
    """Each inhibition has two pipelines: one with its cause, one without."""
    posted: dict[tuple[str, str], bool] = {}
    for number, one in enumerate(INHIBITIONS):
        for name in SEVERITY.keys() - SOURCES:
            posted[f"with-{number}", name] = name in one.targets
            posted[f"without-{number}", name] = False
        posted[f"with-{number}", one.source] = False
        for target in set(one.targets) & SOURCES:
            posted[f"pair-{number}-{target}", one.source] = False
            posted[f"pair-{number}-{target}", target] = True
    _post(url, [{"pipeline": pipeline, "alertname": name, "severity": SEVERITY[name]} for pipeline, name in posted])
    deadline = time.monotonic() + 20
    while (found := _suppressed(url)) != posted and time.monotonic() < deadline:
        time.sleep(0.2)
    assert found == posted


def test_every_inhibition_names_alerts_that_exist_and_its_cause_pages() -> None:
    for one in INHIBITIONS:
        assert SEVERITY[one.source] == "critical"
        assert set(one.targets) <= SEVERITY.keys() - {one.source}
        # Neither the loss of a slot nor a table that is not equal is ever silent.
        assert not {"SluiceSlotLost", "SluiceTableUnequal", "SluiceApplierDown"} & set(one.targets)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_only_what_is_worth_a_page_reaches_the_pager(alert: Alert, alertmanager: Path) -> None:
    routes = (alertmanager.with_name("amtool"), "config", "routes", "test", f"--config.file={ROOT / ALERTMANAGER}")
    done = commands.ended(*routes, f"alertname={alert.name}", f"severity={alert.severity}", "pipeline=shop")
    assert done.stdout.strip() == ("pager" if alert.severity == "critical" else "tickets"), done.stderr


def _with_its_templates(alertmanager: Path) -> list[str]:
    """Debian's build reads its templates from the system's folder, where an unpacked package has put
    nothing: it gets a folder of its own there, which nobody else sees.
    """
    if not alertmanager.is_relative_to(CACHE):
        return []
    prepare = 'mount -t tmpfs none /usr/share && mkdir /usr/share/prometheus && cp -r "$0" /usr/share/prometheus'
    templates = alertmanager.parents[1] / "share" / "prometheus" / "alertmanager"
    wrapper = ["unshare", "--mount", "--map-root-user", "sh", "-c", f'{prepare} && exec "$@"', str(templates)]
    if subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace for the templates of an unpacked Alertmanager: sudo apt-get install it")
    return wrapper


def _post(url: str, labels: list[dict[str, str]]) -> None:
    body = json.dumps([{"labels": each} for each in labels]).encode()
    request = urllib.request.Request(
        f"{url}/api/v2/alerts", data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=10):
        pass


def _suppressed(url: str) -> dict[tuple[str, str], bool]:
    with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=10) as answer:
        return {
            (one["labels"]["pipeline"], one["labels"]["alertname"]): bool(one["status"]["inhibitedBy"])
            for one in json.load(answer)
        }
