"""``replog doctor``: find the usual traps on this machine and say the remedy."""

from __future__ import annotations

import os

import click

from spark_replog.cli.output import EXIT_CRITICAL, EXIT_OK, EXIT_WARN, emit
from spark_replog.cli.settings import current_settings, global_options

_MARKS = {"ok": "ok      ", "warn": "WARN    ", "critical": "CRITICAL"}


@click.command("doctor")
@global_options
def doctor() -> int:
    """Check versions, Java, the workers' Python and, where a store is given, each of its roots.

    Exit code 0 when all is well, 3 with a warning, 4 when Spark with replog cannot work.
    """
    settings = current_settings()
    from spark_replog.cli.checks import machine_checks, store_checks

    checks = list(machine_checks(os.environ))
    if settings.store:
        checks += store_checks(settings.store, settings.storage_options)
    verdicts = {check.verdict for check in checks}
    exit_code = EXIT_CRITICAL if "critical" in verdicts else EXIT_WARN if "warn" in verdicts else EXIT_OK
    lines = []
    for check in checks:
        lines.append(f"{_MARKS[check.verdict]}  {check.name}: {check.detail}")
        if check.remedy:
            lines.append(f"{' ' * 10}-> {check.remedy}")
    return emit("doctor", [check.to_item() for check in checks], settings, text="\n".join(lines), exit_code=exit_code)
