"""Settings of a store: how its file systems are opened, and what its ledger of the cluster keeps."""

from __future__ import annotations

from spark_replog.config.key import ConfigKey

SUPER_USERS_KEY = "super.users"
ALLOW_EVERYONE_KEY = "allow.everyone.if.no.acl.found"

STORAGE_KEYS = (
    ConfigKey(
        "storage.fsync",
        "storage",
        True,
        None,
        "bool",
        "False makes a store that may lose acknowledged rows at a power cut. Chosen once, by "
        "'replog init --no-fsync', and recorded in every root.",
    ),
    ConfigKey(
        "storage.*",
        "storage",
        None,
        None,
        "text",
        "Anything else after 'storage.' goes to the file system as it is (fsspec's own names, such as "
        "storage.endpoint_url for S3). A scheme or a URL before the name, as in storage.s3.key or "
        "storage.s3://bucket.key, keeps it to those roots.",
    ),
)

CLUSTER_KEYS = (
    ConfigKey(
        SUPER_USERS_KEY,
        "cluster",
        None,
        None,
        "text",
        "Principals that may do everything, separated by semicolons: User:admin;User:ops.",
    ),
    ConfigKey(
        ALLOW_EVERYONE_KEY,
        "cluster",
        True,
        "false",
        "bool",
        "Whether a topic, group, transactional.id or the store itself is open to all as long as no ACL names it. "
        "Kafka's default counts only once an authorizer is configured; a store is born with one and without ACLs.",
    ),
)

__all__ = ["ALLOW_EVERYONE_KEY", "CLUSTER_KEYS", "STORAGE_KEYS", "SUPER_USERS_KEY"]
