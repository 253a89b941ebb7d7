"""The demonstration: PostgreSQL, Sluice and a shop under load on one machine, ending in a
comparison row by row.
"""
