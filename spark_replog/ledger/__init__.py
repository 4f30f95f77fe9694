"""One replicated log per ledger: consensus over write-once journals on passive roots."""
