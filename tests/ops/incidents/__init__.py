"""Incidents of a real pipeline, recorded as the scrapes that Prometheus would have seen, and played
under the alert rules for hours of simulated time.

`python -m tests.ops.incidents` records them again, in about twenty minutes.
"""
