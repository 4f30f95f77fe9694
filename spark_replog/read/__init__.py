"""The read path in an executor: byte ranges in, Arrow batches out. Never reads a ledger."""
