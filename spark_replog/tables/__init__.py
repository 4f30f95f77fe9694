"""Typed topics as Delta and Iceberg tables: rows and offsets in one commit of the table."""
