"""The write path on an executor: Arrow batches in, data objects on every in-sync root out."""
