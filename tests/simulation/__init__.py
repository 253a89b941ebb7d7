"""The simulator: a model of PostgreSQL, the real ingest and the real bookkeeping of the applier, in one thread
and in virtual time. A seed decides every order of events; see `world`.
"""
