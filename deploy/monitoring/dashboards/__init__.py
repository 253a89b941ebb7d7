"""The dashboards that Sluice ships."""

from deploy.monitoring.dashboards import apply, ingest, overview, snapshots, source
from deploy.monitoring.dashboards.panels import Dashboard

DASHBOARDS: tuple[Dashboard, ...] = (overview.BOARD, source.BOARD, ingest.BOARD, apply.BOARD, snapshots.BOARD)
