"""Who acts: a name that is taken driver-side and carried; advisory (docs/security.md)."""

from __future__ import annotations

import getpass
import os

from spark_replog.log.acl import normal_principal

PRINCIPAL_VARIABLE = "REPLOG_PRINCIPAL"


def default_principal() -> str:
    """Return who acts where the user does not say: ``REPLOG_PRINCIPAL``, else ``User:<os user>``."""
    named = os.environ.get(PRINCIPAL_VARIABLE)
    if named:
        return normal_principal(named)
    try:
        return f"User:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user may have no name
        return f"User:{os.getuid()}"
