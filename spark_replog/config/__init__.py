"""Settings: frozen values, made once from the dotted names that a user gives.

Each setting is declared once, as a field of its settings class or as a ``ConfigKey``. Parsing, ``CONFIG_KEYS``,
``docs/configuration.md``, ``conf/`` and shell completion are derived from the declarations.
"""
