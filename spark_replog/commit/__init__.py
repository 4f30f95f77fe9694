"""From task messages to a decided entry: replica manager, append, replication, replica fetchers, ISR and elections."""
