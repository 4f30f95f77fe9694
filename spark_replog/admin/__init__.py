"""Topics, partitions, brokers, ACLs and quotas by command, and the coordinator loop."""
