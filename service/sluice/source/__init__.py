"""PostgreSQL: sessions, catalog, slot and its continuity, publication, snapshot export."""
