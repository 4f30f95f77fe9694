"""Plain Python: open, Producer, Consumer, scan, transactions, group membership."""
