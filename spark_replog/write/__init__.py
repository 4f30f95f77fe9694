"""The write path in an executor: Arrow batches in, data objects on every in-sync root out. Never reads a ledger."""
