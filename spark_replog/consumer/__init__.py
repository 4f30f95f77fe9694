"""The read path: which bytes hold which offsets, and how they become rows."""
