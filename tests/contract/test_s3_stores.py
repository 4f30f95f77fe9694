"""Making and opening whole stores on S3, on bad days."""

from __future__ import annotations

import uuid

import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError, RetriableError
from spark_replog.storage.brokers import BrokerSet, write_root_files
from spark_replog.storage.open_store import open_store
from tests.http_fault_proxy import HttpFault, PlannedAnswer


@pytest.fixture
def bucket(s3_options):
    name = f"bucket-{uuid.uuid4().hex}"
    open_store(f"s3://{name}/log", s3_options).file_system().mkdir(name)
    return name


def roots_in(*buckets):
    return [f"s3://{name}/{number}" for number, name in enumerate(buckets)]


def test_a_missing_bucket_leaves_no_root_file_in_the_others(s3_options, bucket):
    with pytest.raises(RetriableError, match="bucket does not exist") as raised:
        write_root_files(roots_in(bucket, "mistyped", bucket), s3_options)
    assert (raised.value.code, raised.value.context["url"]) == (ErrorCode.REPLOG_ROOT_STALE, "s3://mistyped/1")
    made = write_root_files(roots_in(bucket, bucket, bucket), s3_options)
    assert made.broker_ids == (0, 1, 2)


@pytest.mark.parametrize("parent", [True, False])
def test_an_only_root_that_is_slowed_down_is_asked_again(s3_options, s3_proxy, bucket, parent):
    root = f"s3://{bucket}/log/broker-0"
    made = write_root_files([root], s3_options)
    s3_proxy.plan("GET", PlannedAnswer(HttpFault.BEFORE, 503), times=3)
    assert BrokerSet.open(root.removesuffix("/broker-0") if parent else root, s3_options).brokers == made.brokers


def test_roots_that_all_refuse_are_not_said_to_be_away(s3_options, s3_proxy, bucket):
    path = ",".join(roots_in(bucket, bucket))
    for call in (lambda: BrokerSet.open(path, s3_options), lambda: write_root_files(path.split(","), s3_options)):
        s3_proxy.clear()
        s3_proxy.plan("GET", PlannedAnswer(HttpFault.BEFORE, 403), times=2)
        with pytest.raises(ReplogError, match=r"Check credentials and permissions: .*needed.*\. ") as raised:
            call()
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
        assert len(s3_proxy.requests) == 2


@pytest.mark.parametrize("wrong", [{"client_kwargs": "eu-west-1"}, {"endpoint_url": "127.0.0.1:9000"}, {"bogus": "1"}])
def test_options_that_the_client_does_not_take_are_not_said_to_be_the_network(s3_options, bucket, wrong):
    with pytest.raises(InvalidConfigError, match="does not take these storage options") as raised:
        BrokerSet.open(f"s3://{bucket}/log", {**s3_options, **wrong})
    assert raised.value.code is ErrorCode.REPLOG_INVALID_OPTION


def test_a_store_that_is_not_found_may_lack_its_bucket(s3_options):
    with pytest.raises(NotFoundError, match="that its bucket exists, or make one: replog -s s3://mistyped/log init"):
        BrokerSet.open("s3://mistyped/log", s3_options)
