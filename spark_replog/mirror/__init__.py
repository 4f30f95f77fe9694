"""Mirrors of Kafka's topics, with the same offsets: committed records of a cluster, written to a store."""
