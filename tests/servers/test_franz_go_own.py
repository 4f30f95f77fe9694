"""franz-go's own tests of its client that need a broker, at a gateway: which pass, and why the others do not."""

from __future__ import annotations

import faulthandler
import os
import re
import subprocess

import pytest

from spark_replog.gateway.user_file import UserFile, credentials_of, encode_users
from tests.gateways import RunningGateway
from tests.servers.builds import FRANZ_TESTS, NotBuilt

pytestmark = pytest.mark.wide
RECORDS = 5_000
"""Of the chain of groups; its own default is 500,000."""
SECONDS_MAX = 1_200
PASSED = (
    "TestAddRemovePartitions",
    "TestClient_Produce",
    "TestClient_ProduceLargeMessages",
    "TestConsumeRegex",
    "TestConsumeTopicRetrieval",
    "TestConsumeTopicRetrieval_Many",
    "TestDirectPartitionPurge",
    "TestGroupETL",
    "TestGroupETL/cooperative-sticky",
    "TestGroupETL/cooperative-sticky/static",
    "TestGroupETL/range",
    "TestGroupSimple",
    "TestGroupSimple/classic",
    "TestHookPollStart",
    "TestIssue1034",
    "TestIssue325",
    "TestIssue337",
    "TestIssue434",
    "TestIssue523",
    "TestIssue523/roundrobin",
    "TestIssue523/sticky",
    "TestIssue648",
    "TestIssue769",
    "TestIssue810",
    "TestIssue831",
    "TestIssue865",
    "TestIssueFetchLargerThanBrokerMaxReadBytes",
    "TestIssueProduceSyncManualPartitionNegativeDoesNotPanic",
    "TestPauseIssue489",
    "TestPauseIssueOct2023",
    "TestPing",
    "TestUnknownGroupOffsetFetchPinned",
)
COMPRESSED = "It wants a compressed batch back. The gateway's batches are made of columns, and are not compressed."
NEW_PROTOCOL = "It skips itself, as the gateway does not offer the new protocol of groups."
OTHERS = {
    "TestConsumeMaxDecompressBatchBytes": ("FAIL", COMPRESSED),
    "TestPooling": ("FAIL", COMPRESSED),
    "TestGroupETL/range/848": ("SKIP", NEW_PROTOCOL),
    "TestGroupETL/sticky/848": ("SKIP", NEW_PROTOCOL),
    "TestGroupETL/sticky/848/static": ("SKIP", NEW_PROTOCOL),
    "TestGroupSimple/848": ("SKIP", NEW_PROTOCOL),
    "TestIssueProduceBrokerTooOldFailsRecords": ("SKIP", "It skips itself where old versions of Produce are offered."),
}
"""What does not pass, and why. Not run: TestTxnEtl (no transactions), the tests of share groups, TestOAuthAuth."""
DETAILS = ("TestClient_ProduceLargeMessages/", "TestHookPollStart/")
"""Parts of a test that are not listed."""
_OUTCOME = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


def outcomes(names: list[str], **environment: str) -> tuple[dict[str, str], str]:
    """Run these tests; return what became of each and of their parts, and what they printed."""
    try:
        program = FRANZ_TESTS.folder() / "tests"
    except NotBuilt as why:
        pytest.skip(str(why))
    faulthandler.cancel_dump_traceback_later()  # acknowledged one by one, 20,000 records take longer than other tests
    command = [str(program), "-test.v", "-test.parallel", "4", "-test.timeout", f"{SECONDS_MAX}s"]
    command += ["-test.run", f"^({'|'.join(names)})$"]
    variables = {"KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(RECORDS), **environment}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX + 60, env={**os.environ, **variables}
    )  # fmt: skip
    return {name: outcome for outcome, name in _OUTCOME.findall(done.stdout)}, done.stdout + done.stderr[-4_000:]


def test_franz_gos_tests_pass_but_for_those_that_are_listed():
    expected = dict.fromkeys(PASSED, "PASS") | {name: outcome for name, (outcome, _) in OTHERS.items()}
    with RunningGateway() as gateway:
        run, said = outcomes(sorted({name.partition("/")[0] for name in expected}), KGO_SEEDS=gateway.address)
    assert {name: how for name, how in run.items() if not name.startswith(DETAILS)} == expected, said


def test_franz_gos_tests_of_passwords_pass(tmp_path):
    path = tmp_path / "users.json"
    path.write_bytes(encode_users({"alice": credentials_of("secret")}))
    names = ["TestSCRAMAuth", "TestSCRAMAuthBadCredentials"]
    with RunningGateway(users=UserFile(path)) as gateway:
        address = gateway.address
        for user in ("alice:secret:256", "alice:secret:512"):
            run, said = outcomes(names, KGO_SEEDS=address, KGO_TEST_SCRAM_SEEDS=address, KGO_TEST_SCRAM=user)
            assert run == dict.fromkeys(names, "PASS"), said
