"""OpenTelemetry spans of what became of manifest entries: received, durable, visible. Off unless `telemetry.traces` is
set, and the libraries are imported only then.

Invariant: nothing here keeps ingest or the applier waiting, or makes them fail. No row value, no SQL and no name of a
column leaves with a span.
"""
