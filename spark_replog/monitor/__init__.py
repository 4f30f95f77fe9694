"""Monitoring of a store, its groups and the queries that read it. Writes nothing."""
