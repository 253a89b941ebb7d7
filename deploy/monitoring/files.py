"""Which file holds what: everything that is generated from the data in this package, as text by
path from the repository's root.
"""

import json
from pathlib import Path

from deploy.monitoring import alertmanager, rules
from deploy.monitoring.alerts import ALERTS, DEFAULTS, RECORDINGS
from deploy.monitoring.alerts.inhibitions import INHIBITIONS
from deploy.monitoring.dashboards import DASHBOARDS
from deploy.monitoring.model import Alert

CHART = Path("helm/sluice/files")
PLAIN_RULES = Path("deploy/monitoring/rules.yml")
ALERTMANAGER = Path("deploy/monitoring/alertmanager.yml")
RUNBOOKS = Path("docs/runbooks")
INDEX = RUNBOOKS / "README.md"
_GENERATED_FOLDERS = (CHART / "alerts", CHART / "dashboards")


def generated() -> dict[Path, str]:
    """Every generated file and its text."""
    files = {
        PLAIN_RULES: rules.plain_file(ALERTS, RECORDINGS, DEFAULTS),
        CHART / "recording-rules.yaml": rules.chart_recordings(RECORDINGS),
        ALERTMANAGER: alertmanager.alertmanager_file(INHIBITIONS),
        CHART / "inhibit-rules.yaml": alertmanager.chart_inhibitions(INHIBITIONS),
        INDEX: index(),
    }
    files |= {CHART / "alerts" / f"{alert.name}.yaml": rules.chart_alert(alert) for alert in ALERTS}
    files |= {
        CHART / "dashboards" / f"{board.uid}.json": json.dumps(board.to_json(), indent=2) + "\n" for board in DASHBOARDS
    }
    return files


def is_ours(path: Path) -> bool:
    """Whether a file lies where nothing is written by hand, so that one that is no longer generated
    has to go.
    """
    return path.parent in _GENERATED_FOLDERS


def index() -> str:
    """docs/runbooks/README.md."""
    lines = [_INDEX_HEAD]
    for severity, kind, wanted in (
        ("critical", "a page", "act now"),
        ("warning", "no page", "act on the next working day"),
    ):
        lines += [f"\n## {severity} ({kind}): {wanted}\n", "| alert | meaning |", "|---|---|"]
        lines += [
            f"| [{alert.name}]({alert.name}.md) | {_spoken(alert)} |" for alert in ALERTS if alert.severity == severity
        ]
    return "\n".join([*lines, ""])


def _spoken(alert: Alert) -> str:
    """The description without what only Prometheus can fill in."""
    return rules.spoken(alert.description, DEFAULTS)


_INDEX_HEAD = """\
# Runbooks

Each alert that Sluice ships has one page here: what it means, how to see it, what to do, and what not
to do. The rules are in `deploy/monitoring/rules.yml`. The chart has the same rules with your own
thresholds (`metrics.prometheusRule`).

Run each command with the configuration of the pipeline: `-c FILE` or `SLUICE_CONFIG`. In
Kubernetes, run it inside the ingest pod, as in `kubectl exec RELEASE-sluice-ingest-0 -c ingest --
sluice status`. `status`, `tables`, `slot show` and `spool` work even if no process of the pipeline
runs. `$DSN` is the connection string of the source, and you can run `psql` anywhere that reaches
the source. The log says why a process ended, and [exit codes](../exit-codes.md) explains its exit
code. No step on these pages loses data unless it says so. In the tables below, … stands for a value
that the alert shows.

## When the pod does not stay up

`kubectl exec` needs a container that runs. If ingest ends repeatedly, run the command in a copy
of its pod. The copy has the same image, configuration, secrets and service account, but no probes and
no labels, and it runs your command instead of ingest.

```sh
kubectl debug RELEASE-sluice-ingest-0 --copy-to=sluice-debug --same-node --container=ingest -it -- sluice status
kubectl delete pod sluice-debug
```

The commands on these pages only read, unless the page says otherwise, so the copy may run at the same
time as the pod. Never run `sluice run` in it. If there is no pod at all (`paused`, or scaled to zero), set
`paused: false`, or run the commands where the configuration and the secrets are:

```sh
kubectl get configmap RELEASE-sluice -o jsonpath='{.data.sluice\\.yaml}' > sluice.yaml
SLUICE_SOURCE__DSN="$DSN" sluice status -c sluice.yaml
```

<!-- Generated from deploy/monitoring by `make docs`; `make check` compares. -->"""
