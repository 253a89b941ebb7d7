"""README.md of the chart: how to install it, and every value."""

import json
from collections.abc import Sequence

from deploy.chart.values import Value

_LONGEST_DEFAULT = 60


def page(values: Sequence[Value]) -> str:
    """The whole page."""
    rows = [
        f"| `{value.name}` | {_default(value)} | {value.description.replace('|', chr(92) + '|')} |" for value in values
    ]
    return "\n".join([_HEAD, *rows, ""])


def _default(value: Value) -> str:
    if value.shown:
        return value.shown
    text = json.dumps(value.default)
    assert len(text) <= _LONGEST_DEFAULT, f"{value.name}: say its default with `# @default --`"
    return f"`{text}`"


_HEAD = """\
# Sluice in Kubernetes

Sluice keeps Delta Lake tables equal to PostgreSQL tables. A release has one pipeline, or several
(`pipelines`). Ingest, which reads PostgreSQL, is a StatefulSet of one pod, because only one process can
use a replication slot. The applier, which writes the Delta tables with Spark, is another StatefulSet,
or a driver with executors in Kubernetes, or an application of the Kubeflow Spark operator, or runs
elsewhere (`applier.mode`). You need Kubernetes 1.25 or newer and Helm 3.14 or newer.

```sh
kubectl create secret generic shop-source --from-literal=dsn='postgresql://sluice:...@db.example.com/shop?sslmode=verify-full'
helm install shop helm/sluice -f shop.yaml
helm test shop --logs
```

The smallest `shop.yaml`:

```yaml
config:
  pipeline: shop
  source: {tables: ["public.*"]}
  spool: {uri: "s3://sluice-spool"}
  lake: {uri: "s3://sluice-lake"}
source: {existingSecret: {name: shop-source}}
ingest: {image: {registry: registry.example.com/data}}
applier: {image: {registry: registry.example.com/data}}
```

* **Images**: `make images` builds them from `deploy/images`, with Python 3.11, Java 17, Spark 4.2.0
  and Delta 4.4.0. Push them to your registry, and name it in `ingest.image.registry` and
  `applier.image.registry`. The chart knows their names.
* **Configuration**: `config` is the file that `docs/configuration.md` describes. The chart refuses
  an unknown key, a wrong type and a secret before it installs anything. A changed `config` replaces
  the pods.
* **Secrets**: create the Secrets first, and name them in the values. The chart has no value for the
  content of a secret. The applier gets no credentials of the source.
* **Several pipelines**: `pipelines` has, by the name of each pipeline, what differs from the other
  values. Each pipeline has its own pods, or one applier serves all pipelines (`applier.shared`).
* **Probes** check whether the process makes progress. They never ask PostgreSQL or the object
  store, so a failure there does not cause a restart.
* **Nodes**: Kubernetes does not replace the pod of a lost node until it declares the node gone.
  That protects you from two writers. WAL waits in the slot meanwhile, and alerts watch its headroom.
* **`ci/`** in the repository has one file of values for each feature. `make test-ops` renders,
  validates and checks all of them.

## Values

<!-- Generated from values.yaml by `make docs`; a test compares. -->

| key | default | meaning |
|---|---|---|"""
