"""The group coordinator: members, rebalances, committed offsets, their expiry."""
