"""What the chart says about itself: `values.schema.json` and `README.md`, written from
`values.yaml` and the service's own settings.

Invariant: neither is written by hand, and `make check` compares both with what is here; the chart accepts
exactly the configuration that the service accepts, secrets excepted. Must not render the chart.
"""
