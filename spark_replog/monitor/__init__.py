"""Looks at a store, its groups and the queries that read it, for commands and metrics; writes nothing."""
