"""From task messages to a decided entry: replica manager, append, purgatory, replica fetchers, ISR and elections."""
