"""The streaming and batch source: positions, limits, splitting, data loss, rows."""
