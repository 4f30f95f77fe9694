"""The ``replog`` command: one module per noun; nothing heavy is imported before a command's body."""
