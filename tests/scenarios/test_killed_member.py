"""A consumer that is killed with SIGKILL: its group can be used again after its session, whoever looks."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

import spark_replog
from spark_replog import TopicPartition
from spark_replog.cli.main import run
from spark_replog.clock import SystemClock
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.log.codec.group_records import GroupPhase
from tests.waiting import wait_until

SESSION_MS = 6_000
CONSUMER = f"""
import sys
from spark_replog import Consumer
member = Consumer(sys.argv[1], "orders", group="g", config={{"session.timeout.ms": {SESSION_MS},
                  "heartbeat.interval.ms": 500, "auto.offset.reset": "earliest"}})
while not member.poll(timeout_ms=5_000):
    pass
member.commit()
print("joined", flush=True)
while True:
    member.poll(timeout_ms=500)
"""


@pytest.fixture
def store(tmp_path):
    made = spark_replog.init(str(tmp_path / "store"), brokers=3, fsync=False)
    made.admin().create_topic("orders")
    with made.producer() as producer:
        producer.send("orders", b"v").result(timeout=60)
    return made


@pytest.fixture
def killed(store):
    """A group whose only member was killed just now."""
    member = subprocess.Popen([sys.executable, "-c", CONSUMER, store.path], stdout=subprocess.PIPE, text=True)
    assert member.stdout.readline() == "joined\n"
    with pytest.raises(ReplogError) as refused:
        GroupCoordinator(store.cluster).delete_group("g")
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    member.send_signal(signal.SIGKILL)
    member.communicate()
    return store


def test_its_group_is_reset_and_deleted_after_its_session(killed, monkeypatch):
    time.sleep(SESSION_MS / 1000.0)
    slept_ms, sleep_ms = [], SystemClock.sleep_ms

    def note_and_sleep(clock, ms):
        if threading.current_thread() is threading.main_thread():  # threads of other tests' stores may still sleep
            slept_ms.append(ms)
        sleep_ms(clock, ms)

    monkeypatch.setattr(SystemClock, "sleep_ms", note_and_sleep)
    assert (
        run(["-s", killed.path, "group", "reset-offsets", "g", "--topic", "orders", "--to-earliest", "--execute"]) == 0
    )
    assert sum(slept_ms) <= SESSION_MS + max(slept_ms)  # it watched for one session
    groups = GroupCoordinator(killed.cluster)
    assert groups.fetch_offsets("g")[TopicPartition("orders", 0)].offset == 0
    assert run(["-s", killed.path, "group", "delete", "g", "-y"]) == 0
    assert groups.group("g") is None


def test_a_coordinator_that_runs_takes_it_out(killed):
    loop = [sys.executable, "-m", "spark_replog", "-s", killed.path, "coordinator", "run", "--interval-ms", "500"]
    coordinator = subprocess.Popen(loop, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    groups = GroupCoordinator(killed.cluster)
    try:
        wait_until(lambda: groups.group("g").phase is GroupPhase.EMPTY, pause_seconds=0.2)
    finally:
        coordinator.terminate()
        coordinator.wait()
    groups.delete_group("g")
