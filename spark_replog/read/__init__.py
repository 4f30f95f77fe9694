"""The read path: plans byte ranges from a fold, and reads them as Arrow batches. Never reads a ledger's files."""
