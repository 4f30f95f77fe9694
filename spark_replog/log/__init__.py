"""Data objects, ledger commands and the folds that give them offsets. No I/O, clock or thread."""
