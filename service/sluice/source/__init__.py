"""All talk with PostgreSQL: sessions, stream, slot, catalog, preflight, copy. The only room that
imports psycopg.
"""
