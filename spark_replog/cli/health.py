"""How ``store info``, ``topic describe`` and ``doctor`` show what is wrong with a store."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_replog.cli.output import EXIT_CRITICAL, EXIT_OK, EXIT_WARN, table
from spark_replog.cli.settings import Settings

if TYPE_CHECKING:
    from spark_replog.health.findings import Finding

_SHOWN_MAX = 20


def finding_subject(finding: Finding) -> str:
    """Return what a finding is about: a partition, a broker, or the store."""
    if finding.topic is not None:
        return f"{finding.topic}-{finding.partition}"
    return "store" if finding.broker_id is None else f"broker {finding.broker_id}"


def finding_remedy(finding: Finding, settings: Settings) -> str:
    """Return the remedy with commands that can be typed as they are."""
    if settings.store is None or settings.is_store_from_environment:
        return finding.remedy
    return finding.remedy.replace("replog ", f"replog -s {shlex.quote(settings.store)} ")


def finding_items(findings: Sequence[Finding], settings: Settings) -> list[dict[str, Any]]:
    """Return findings as JSON values, in their order."""
    return [
        {
            "level": finding.level.name,
            "fault": finding.fault.value,
            "topic": finding.topic,
            "partition": finding.partition,
            "broker": finding.broker_id,
            "detail": finding.detail,
            "remedy": finding_remedy(finding, settings),
        }
        for finding in findings
    ]


def finding_text(findings: Sequence[Finding], settings: Settings) -> str:
    """Return a table of the first findings and the commands that help, each once; empty without findings."""
    if not findings:
        return ""
    shown = findings[:_SHOWN_MAX]
    rows = [(each.level.name, finding_subject(each), each.fault.value, each.detail) for each in shown]
    lines = [table(["LEVEL", "WHERE", "FAULT", "DETAIL"], rows)]
    if len(findings) > len(shown):
        lines.append(f"and {len(findings) - len(shown)} more: add -f json to list all")
    remedies = dict.fromkeys(finding_remedy(each, settings) for each in shown)
    return "\n".join([*lines, "", *(f"-> {remedy}" for remedy in remedies)])


def exit_code_of_findings(findings: Sequence[Finding]) -> int:
    """Return 4 where one is critical, else 3, or 0 without findings."""
    worst = max((finding.level for finding in findings), default=0)
    return EXIT_CRITICAL if worst == EXIT_CRITICAL else EXIT_WARN if findings else EXIT_OK
