"""Drills with several real servers: failovers of the source."""
