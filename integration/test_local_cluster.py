"""The driver is one process and each executor another; test_deployment.py has more ways to run Spark."""

from __future__ import annotations

from deployments import SMALL, run_job


def test_local_cluster(environment, topics):
    facts = run_job(environment.quick_to_start(), topics, "local-cluster[2,1,512]", *SMALL)
    assert facts["executors"] == 2
