"""Whoever runs it: alerts, dashboards, chart, images, the local stack, the status page."""
