"""The ``replog`` command: one module a noun; nothing heavy is imported before a command's body."""
