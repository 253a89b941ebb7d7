"""The pipeline from the replication stream to the acknowledgement: one package per stage, in the
order of the data.
"""
