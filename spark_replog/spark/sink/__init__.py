"""The sink: writer per micro-batch, tasks, commit."""
