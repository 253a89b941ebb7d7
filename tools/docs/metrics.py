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

Ingest serves `/metrics` on `telemetry.listen`, the applier on `telemetry.apply_listen`. Every series carries the label `pipeline`. LSNs are exported as
plain numbers of bytes; times are unix seconds, so that `time() - x` grows when the process hangs. `sluice_rows_total` and
`sluice_apply_table_watermark_timestamp_seconds` alone grow with the number of tables: past `telemetry.max_tables` rows are counted under schema and table
`_other`, watermarks are left to the quantiles of `sluice_apply_freshness_seconds`, and `sluice_metrics_tables_dropped` says how many tables that concerns.
A scrape of 500 tables renders in about 20 ms, at most once a second however many ask; nothing is counted per row.

`/livez` fails when a loop has stopped going round or a step has outlived its own deadline, never because PostgreSQL or the object store are away, and never
because a merge takes long. `/readyz` of ingest holds while the pipeline is healthy or degraded and
says which problems there are ([problems](problems.md)); that of the applier holds while it has the lease and applies. `/startupz` holds once configuration is
read. `/status` of ingest is `sluice status --json`.

<!-- Generated from service/sluice/telemetry/catalogue.py by `python -m tools.docs`; a test compares. -->"""
