"""Columns to Arrow to Parquet segments. The only room that imports pyarrow."""
