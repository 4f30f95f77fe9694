"""`deployment_job.py` on any master."""

from __future__ import annotations

import json
from pathlib import Path

JOB = Path(__file__).with_name("deployment_job.py")
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SMALL = (
    f"spark.driver.extraJavaOptions={QUICK}",
    f"spark.executor.extraJavaOptions={QUICK}",
    "spark.executor.memory=512m",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.driver.host=127.0.0.1",
    "spark.scheduler.minRegisteredResourcesRatio=1.0",
)


def run_job(environment, store, master, *settings):
    answer = environment.run(str(environment.python), str(JOB), master, str(store.path), store.checkpoint(), *settings)
    (line,) = [line for line in answer.stdout.splitlines() if line.startswith("@@replog ")]
    facts = json.loads(line.removeprefix("@@replog "))
    assert facts["error"] is None
    assert (facts["rows"], facts["distinct"]) == (100, 100)
    return facts
