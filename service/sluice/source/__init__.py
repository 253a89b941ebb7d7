"""All talk with PostgreSQL: sessions, stream, slot, catalog, snapshot export. The only package that
imports psycopg.
"""
