"""The opened store: its brokers and ledgers as this process has folded them, authorization, client quotas."""
