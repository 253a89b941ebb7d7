"""Metrics and logs. Reads what others count; decides nothing."""
