"""What people run Sluice with: the chart, the images, the compose file."""
