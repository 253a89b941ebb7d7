"""Metrics, logs, health. Reads what others count; decides nothing."""
