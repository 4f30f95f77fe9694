"""What is on storage, held against what the ledgers say."""
