"""The write path of tasks and producers: turns rows into data objects on every in-sync root. Never reads a ledger."""
