"""Documented views and questions over the lake, for any DuckDB client."""
