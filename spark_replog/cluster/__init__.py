"""The opened store: its brokers and ledgers as this process has folded them, who may do what, client quotas."""
