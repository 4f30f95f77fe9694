"""Bytes of the log: data objects, entries, commands. Pure."""
