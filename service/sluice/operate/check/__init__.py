"""Everything that would keep a pipeline from running, or harm the source, found before anything is
created.
"""
