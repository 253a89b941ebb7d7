"""docs/metrics.md, written from the catalogue."""

from sluice.telemetry.catalogue import CATALOGUE, Histogram, Metric


def page() -> str:
    """The whole page."""
    lines = [_HEAD]
    for group in dict.fromkeys(metric.group for metric in CATALOGUE):
        lines += [f"\n## {group}\n", "| name | type | labels | served by | meaning |", "|---|---|---|---|---|"]
        lines += [_row(metric) for metric in CATALOGUE if metric.group == group]
    return "\n".join([*lines, ""])


def _row(metric: Metric) -> str:
    labels = "; ".join(f"{name}: {', '.join(values)}" if values else name for name, values in metric.labels.items())
    buckets = (
        f" Buckets: {', '.join(f'{bound:g}' for bound in metric.buckets)}." if isinstance(metric, Histogram) else ""
    )
    return (
        f"| `{metric.name}` | {type(metric).__name__.lower()} | {labels} | {', '.join(metric.components)} "
        f"| {metric.help}{buckets} |"
    )


_HEAD = """\
# Metrics

Ingest serves `/metrics` on `telemetry.listen`, the applier on `telemetry.apply_listen`. A
[fleet](how-to/many-pipelines.md) serves those of all its pipelines on one address, each with the
label `component`. Every series has the label `pipeline`. LSNs are plain numbers of bytes. Times are
unix seconds, so `time() - x` grows when the process hangs.

Only metrics with the labels `schema` and `table` grow with the number of tables. Tables above
`telemetry.max_tables` have no series of their own: their rows are counted under schema and table
`_other`, and the quantiles of `sluice_apply_freshness_seconds` replace their watermarks.
`sluice_metrics_tables_dropped` says how many tables that affects. `sluice_table_problem` names the
first 100 tables with a problem, and counts the others under `_other`. A scrape of 500 tables renders in
about 20 ms, at most once a second, whatever the number of clients. Nothing is counted per row.

* `/livez` fails when a loop no longer runs, or when a step has exceeded its own deadline. It
  never fails because PostgreSQL or the object store is unavailable, or because a merge takes long.
* `/readyz` of ingest succeeds while the pipeline is healthy or degraded, and lists the
  [problems](problems.md). `/readyz` of the applier succeeds while it has the lease and applies.
* `/startupz` succeeds once the configuration is read.
* `/status` of ingest has the fields of `sluice status --json`, and in `process` what only the running
  process knows.

<!-- Generated from service/sluice/telemetry/catalogue/ by `make docs`; `make check` compares. -->"""
