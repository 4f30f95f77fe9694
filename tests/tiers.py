"""Which tier each test is in: the one place that says so. The root's ``conftest.py`` selects by it.

A tier is what a test needs. A file's tier is that of the longest entry of `TIER_OF` that its path begins with;
``@pytest.mark.wide`` puts a single test, or a single parameter, into ``wide``.
"""

from __future__ import annotations

from collections.abc import Iterable

FAST, PLAIN, OUTSIDE, SPARK, WIDE = "fast", "plain", "outside", "spark", "wide"
TIERS = {
    FAST: "one process, no JVM",
    PLAIN: "the whole product in plain Python: processes, kills, storms, simulations, generated cases, docs",
    OUTSIDE: "real storage servers, cloud clients, tables, Prometheus, Chromium, FUSE, the documentation site, mypy",
    SPARK: "the newest Spark, from the built wheel in an environment of its own",
    WIDE: "older Sparks, jars, more kills, more seeds, every way of deployment",
}
TIER_OF = {
    "tests/unit": FAST,
    "tests/unit/client/test_other_engines.py": OUTSIDE,
    "tests/unit/monitor/test_open_telemetry.py": OUTSIDE,
    "tests/unit/storage/test_cloud_errors.py": OUTSIDE,
    "tests/unit/storage/test_open_store.py": OUTSIDE,
    "tests": PLAIN,
    "tests/contract/test_s3_contract.py": OUTSIDE,
    "tests/contract/test_s3_stores.py": OUTSIDE,
    "tests/property/test_writers_and_readers.py": OUTSIDE,
    "tests/scenarios/test_console.py": OUTSIDE,
    "tests/scenarios/test_mixed_roots.py": OUTSIDE,
    "tests/scenarios/test_table_kills.py": OUTSIDE,
    "tests/scenarios/test_table_sync.py": OUTSIDE,
    "tests/servers": OUTSIDE,
    "tests/test_site.py": OUTSIDE,
    "tests/test_types.py": OUTSIDE,
    "integration": SPARK,
    "integration/test_deployment.py": WIDE,
    "integration/test_local_cluster.py": WIDE,
    "integration/test_release.py": WIDE,
    "integration/test_versions.py": WIDE,
}

NEWCOMER = "newcomer"
"""Not a tier: what the README's command runs, `NEWCOMER_TIERS` and `NEWCOMER_SPARK`. ``[test]`` holds what it needs."""
NEWCOMER_TIERS = (FAST, PLAIN)
NEWCOMER_SPARK = (
    "integration/test_stream_and_batch.py::test_stream_in_and_out_with_restart",
    "integration/test_exactly_once.py::test_driver_killed_again_and_again",
    "integration/test_faults.py::test_root_goes_and_comes_back",
)
"""A stream into a store and back, a killed driver, a lost root."""
BUT_NEWCOMER = f"-{NEWCOMER}"
"""In a selection: all but what the README's command runs, for a run that comes after it."""

SKIPS_ALLOWED = (
    "asserts an assertion",  # under ``python -O``
    "asks for no credentials",  # a kind of server
    "Azure's blocks need no beginning",
    "another answer decides there",  # the same step is another request at this kind of server
)
"""What the reason of a skip holds that is no gap: ``--no-skips`` makes failures of all others."""


def tier_of_path(path: str) -> str:
    """Return the tier of the file at this path below the project's folder.

    Raises:
        KeyError: it is in no folder of tests.
    """
    return TIER_OF[max((name for name in TIER_OF if f"{path}/".startswith(f"{name}/")), key=len, default="")]


def tier_of(node_id: str, marks: Iterable[str]) -> str:
    """Return the tier of a test: the path of its file before ``::``, and its marks."""
    return WIDE if WIDE in marks else tier_of_path(node_id.partition("::")[0])


def is_selected(node_id: str, marks: Iterable[str], selection: Iterable[str]) -> bool:
    """Return whether a test is in one of these tiers, or in the newcomer's run; with `BUT_NEWCOMER` not in it."""
    tier = tier_of(node_id, marks)
    is_newcomers = tier in NEWCOMER_TIERS or (tier != WIDE and node_id.partition("[")[0] in NEWCOMER_SPARK)
    if is_newcomers and (NEWCOMER in selection or BUT_NEWCOMER in selection):
        return NEWCOMER in selection
    return tier in selection


def may_hold_selected(path: str, selection: Iterable[str]) -> bool:
    """Return whether a file or a folder has to be imported; those of other tiers may need packages that are not there.

    Raises:
        KeyError: it is in no folder of tests.
    """
    wanted = {tier for choice in selection for tier in (NEWCOMER_TIERS if choice == NEWCOMER else (choice,))}
    held = {tier_of_path(path), *(tier for name, tier in TIER_OF.items() if name.startswith(f"{path}/"))}
    is_newcomers = NEWCOMER in selection and any(name.startswith((f"{path}/", f"{path}::")) for name in NEWCOMER_SPARK)
    return WIDE in wanted or not wanted.isdisjoint(held) or is_newcomers
