"""What watches a pipeline: alert rules and dashboards, as data.

Invariant: every expression names its metrics by the objects of `sluice.telemetry.catalogue`, so
that a renamed or removed metric breaks the build and not a night. `make docs` writes the
files that the chart, the local stack and Prometheus read; `make check` compares them.
"""
