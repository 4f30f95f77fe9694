"""Administration of topics, partitions, brokers, ACLs and quotas, and the coordinator loop."""
