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

One release is one pipeline. Ingest is a StatefulSet of one pod: PostgreSQL lends a slot to one process. The applier (Spark) is another one, or a driver
with executors in Kubernetes, or an application of the Kubeflow Spark operator, or elsewhere (`applier.mode`).
Kubernetes 1.25 or newer, Helm 3.14 or newer.

```sh
kubectl create secret generic shop-source --from-literal=dsn='postgresql://sluice:...@db.example.com/shop?sslmode=verify-full'
helm install shop helm/sluice -f shop.yaml
helm test shop --logs
```

with `shop.yaml`, the least there can be:

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

* **Images** are built with `make images`, from `deploy/images`, with Python 3.11, Java 17, Spark 4.2.0 and Delta 4.4.0; the chart names them and
  leaves the registry to you.
* **Configuration** is the file that `docs/configuration.md` describes, under `config`; an unknown key, a wrong type and a secret are refused
  before anything is installed. A change of it rolls the pods.
* **Secrets** exist before and are named: the chart has no key that takes one. The applier gets no credentials of the source.
* **Probes** ask whether the process moves, never PostgreSQL or the object store, so that their failure does not become a restart.
* **Nodes**: the pod of a node that is lost is not replaced before Kubernetes declares the node gone, for two would be worse than none; WAL waits in
  the slot meanwhile, which is what the alerts on its free space are for.
* **`ci/`** in the repository has one file of values for each feature; every one is rendered, validated and judged by `make test-ops`.

## Values

<!-- Generated from values.yaml by `make docs`; a test compares. -->

| key | default | meaning |
|---|---|---|"""
