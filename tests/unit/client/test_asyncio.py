"""The clients for asyncio: one core, no call that blocks the loop, and nothing lost by a cancelled task."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

import pytest

from spark_replog import AsyncConsumer, AsyncProducer, TopicPartition
from spark_replog.client import async_clients, transactions
from spark_replog.client.committer import Answer, Appender
from spark_replog.client.consumer import Consumer
from spark_replog.client.producer import Producer
from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, InvalidConfigError, OutcomeUnknownError, ReplogError
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.ids import new_id
from tests.unit.client.consumer_setup import Store


@pytest.fixture
def orders():
    made = Store.init(f"memory://{new_id()}", clock=SYSTEM_CLOCK)
    made.create("orders", 1)
    return made.cluster


def hold(monkeypatch, owner, name, *, is_done=False):
    """Let the calls of a function wait, before their work or once it is done; return two events: begun, go on."""
    begun, goes_on = threading.Event(), threading.Event()
    original = getattr(owner, name)

    def wait():
        begun.set()
        assert goes_on.wait(60)

    def held(*args, **named):
        if not is_done:
            wait()
        result = original(*args, **named)
        if is_done:
            wait()
        return result

    monkeypatch.setattr(owner, name, held)
    return begun, goes_on


async def until(event):
    while not event.is_set():
        await asyncio.sleep(0.01)


async def values(cluster, count, **settings):
    record_values = []
    async with AsyncConsumer(cluster, "orders", auto_offset_reset="earliest", **settings) as consumer:
        async for record in consumer:
            record_values.append(record.value)
            if len(record_values) == count:
                break
    return record_values


def test_no_record_overtakes_one_whose_send_was_cancelled(orders):
    begun, goes_on = threading.Event(), threading.Event()

    class Slow:
        def serialize(self, topic, value):
            if value == b"first":
                begun.set()
                assert goes_on.wait(60)
            return value

    async def main():
        async with AsyncProducer(orders, value_serializer=Slow) as producer:
            cancelled = asyncio.create_task(producer.send("orders", b"first"))
            await until(begun)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            second = asyncio.create_task(producer.send("orders", b"second"))
            for _ in range(10):
                await asyncio.sleep(0)
            goes_on.set()
            await second
        return await values(orders, 2)

    assert asyncio.run(main()) == [b"first", b"second"]


def test_records_of_a_task_keep_their_order_and_come_back(orders):
    async def main():
        async with AsyncProducer(orders) as producer:
            assert (await producer.send_and_wait("orders", b"0")).offset == 0
            futures = [await producer.send("orders", b"%d" % number) for number in range(1, 500)]
            assert [where.offset for where in await asyncio.gather(*futures)] == list(range(1, 500))
            sent = await asyncio.gather(*(producer.send_and_wait("orders", b"%d" % n) for n in range(500, 600)))
            assert [where.offset for where in sent] == list(range(500, 600))
            await producer.flush()
            assert await producer.partitions_for("orders") == 1
        return await values(orders, 600)

    assert asyncio.run(main()) == [b"%d" % number for number in range(600)]


def test_the_loop_runs_on_while_a_send_waits_for_memory(orders, monkeypatch):
    """Every send that may block runs off the loop's thread, and the others on it."""
    threads, loop_thread = [], threading.current_thread()
    original = Producer.send

    def send(self, *args):
        threads.append(threading.current_thread() is loop_thread)
        return original(self, *args)

    monkeypatch.setattr(Producer, "send", send)

    async def main():
        async with AsyncProducer(orders, buffer_memory=8_000, batch_size=1_500, linger_ms=0) as producer:
            futures = [await producer.send("orders", b"%04d" % number + b"x" * 900) for number in range(40)]
            return [where.offset for where in await asyncio.gather(*futures)]

    assert asyncio.run(main()) == list(range(40))
    assert not threads[0], "the first send waits for the topic's metadata"
    assert True in threads and threads.count(False) > 1


def test_outcomes_that_two_threads_tell_at_once_both_arrive(orders, monkeypatch):
    """A record that fails at once is told on the loop's thread, others on the sender's."""
    is_noted, goes_on = threading.Event(), threading.Event()

    class Interrupted(deque):
        """After the first outcome was noted, another thread tells its own."""

        def append(self, item):
            super().append(item)
            if not is_noted.is_set():
                is_noted.set()
                assert goes_on.wait(20)

    monkeypatch.setattr(async_clients, "deque", Interrupted)

    async def main():
        async with AsyncProducer(orders, max_request_size=2_000, batch_size=1_000) as producer:
            first = await producer.send("orders", b"v")
            await asyncio.to_thread(is_noted.wait, 20)
            second = await producer.send("orders", bytes(3_000))
            goes_on.set()
            done, _ = await asyncio.wait([first, second], timeout=10)
            assert done == {first, second}
            assert second.exception().code is ErrorCode.MESSAGE_TOO_LARGE
            return first.result().offset, (await producer.send_and_wait("orders", b"v")).offset

    assert asyncio.run(main()) == (0, 1)


def test_failures_come_by_the_future_or_at_once(orders):
    async def main():
        async with AsyncProducer(orders, max_block_ms=50, max_request_size=2_000, batch_size=1_000) as producer:
            with pytest.raises(ReplogError) as away:
                await producer.send_and_wait("nowhere", b"v")
            assert away.value.code is ErrorCode.REQUEST_TIMED_OUT
            with pytest.raises(ReplogError) as large:
                await (await producer.send("orders", b"v" * 5_000))
            assert large.value.code is ErrorCode.MESSAGE_TOO_LARGE
            with pytest.raises(InvalidConfigError):
                await producer.send("orders", "no bytes")
            cancelled = await producer.send("orders", b"kept")
            cancelled.cancel()
            await producer.close()
            await producer.close()
            with pytest.raises(ReplogError) as closed:
                await producer.send("orders", b"late")
            assert closed.value.code is ErrorCode.REPLOG_PRODUCER_CLOSED
        return await values(orders, 1)

    assert asyncio.run(main()) == [b"kept"]


def test_transactions(orders):
    async def main():
        async with AsyncProducer(orders, transactional_id="t") as producer:
            async with producer.transaction():
                future = await producer.send("orders", b"in")
            assert (await future).offset == 0
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    lost = await producer.send("orders", b"out")
                    raise ZeroDivisionError
            with pytest.raises(ReplogError) as aborted:
                await lost
            assert aborted.value.code is ErrorCode.REPLOG_TRANSACTION_ABORTED
            async with producer.transaction():
                await producer.send("orders", b"in again")
        return await values(orders, 2)

    assert asyncio.run(main()) == [b"in", b"in again"]


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("call", ["begin_transaction", "commit_transaction"])
def test_a_transaction_whose_task_is_cancelled_in_a_call_leaves_none_open(orders, monkeypatch, call, is_done):
    begun, goes_on = hold(monkeypatch, Producer, call, is_done=is_done)

    async def send(producer, value):
        async with producer.transaction():
            await producer.send("orders", value)

    async def main():
        async with AsyncProducer(orders, transactional_id="t") as producer:
            task = asyncio.create_task(send(producer, b"cancelled"))
            await until(begun)
            task.cancel()
            await asyncio.sleep(0)
            goes_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await send(producer, b"next")
        committed = [b"cancelled"] if call == "commit_transaction" else []
        assert await values(orders, len(committed) + 1) == [*committed, b"next"]

    asyncio.run(main())


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_commit_without_answer_is_repeated_or_aborted(orders, monkeypatch, end):
    async def send(producer, value):
        async with producer.transaction():
            await producer.send("orders", value)

    async def main():
        async with AsyncProducer(orders, transactional_id="t") as producer:
            with monkeypatch.context() as patch:
                lost = OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "The answer was lost.")
                patch.setattr(Appender, "append", lambda *_given, **_named: Answer({}, lost))
                with pytest.raises(OutcomeUnknownError):
                    await send(producer, b"doubt")
            with pytest.raises(InvalidConfigError):
                await send(producer, b"refused")
            await getattr(producer, end)()
            await send(producer, b"next")
        expected = [b"doubt", b"next"] if end == "commit_transaction" else [b"next"]
        assert await values(orders, len(expected)) == expected

    asyncio.run(main())


def test_a_failed_begin_leaves_the_transaction_of_another_task_alone(orders):
    async def main():
        async with AsyncProducer(orders, transactional_id="t") as producer, producer.transaction():
            await producer.send("orders", b"v")
            with pytest.raises(InvalidConfigError):
                async with producer.transaction():
                    pass
        return await values(orders, 1)

    assert asyncio.run(main()) == [b"v"]


def test_the_loop_runs_on_while_a_transaction_claims_its_ledger(orders, monkeypatch):
    """An abort gives the claim up, so the next transaction makes a new one, though its topic is known."""
    threads, original = [], transactions.claim_producer

    def claim(*args, **named):
        threads.append(threading.current_thread())
        return original(*args, **named)

    monkeypatch.setattr(transactions, "claim_producer", claim)

    async def main():
        async with AsyncProducer(orders, transactional_id="t") as producer:
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send("orders", b"out")
                    raise ZeroDivisionError
            async with producer.transaction():
                await producer.send("orders", b"in")
        return await values(orders, 1)

    assert asyncio.run(main()) == [b"in"]
    assert len(threads) == 2
    assert threading.current_thread() not in threads


def test_a_producer_whose_opening_is_cancelled_is_closed(orders, monkeypatch):
    closed, close = threading.Event(), Producer.close
    monkeypatch.setattr(Producer, "close", lambda self, *args: (close(self, *args), closed.set()))
    begun, goes_on = hold(monkeypatch, async_clients, "Producer")

    async def main():
        task = asyncio.create_task(AsyncProducer(orders).__aenter__())
        await until(begun)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        goes_on.set()
        await asyncio.wait_for(until(closed), 60)

    asyncio.run(main())


def test_a_close_whose_task_is_cancelled_is_made_all_the_same(orders, monkeypatch):
    begun, goes_on = hold(monkeypatch, Consumer, "commit")

    async def main():
        async with AsyncConsumer(orders, "orders", group="g", auto_offset_reset="earliest") as consumer:
            while not consumer.assignment():
                await consumer.poll(1_000)
            committing = asyncio.create_task(consumer.commit())
            await until(begun)
            closing = asyncio.create_task(consumer.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            late = asyncio.create_task(consumer.poll(1_000))
            await asyncio.sleep(0)
            goes_on.set()
            await committing
            with pytest.raises(ReplogError) as refused:
                await late
            assert refused.value.code is ErrorCode.INVALID_REQUEST
        state = GroupCoordinator(orders).group("g")
        assert state is None or not state.metadata.members

    asyncio.run(main())


def test_records_of_a_poll_that_is_cancelled_as_its_consumer_closes_come_again(orders, monkeypatch):
    begun, goes_on = hold(monkeypatch, Consumer, "poll", is_done=True)
    settings = {"group": "g", "auto_offset_reset": "earliest"}

    async def main():
        with Producer(orders) as producer:
            producer.send("orders", b"1").result(60)
        async with AsyncConsumer(orders, "orders", **settings) as consumer:
            polling = asyncio.create_task(consumer.poll(60_000))
            await until(begun)
            polling.cancel()
            asyncio.get_running_loop().call_later(0.05, goes_on.set)
            await consumer.close()  # begins before the poll's task learns that it was cancelled
            with pytest.raises(asyncio.CancelledError):
                await polling
        return await values(orders, 1, group="g")

    assert asyncio.run(main()) == [b"1"]


@pytest.mark.parametrize("is_found", [False, True])
def test_a_cancelled_poll_loses_nothing(orders, monkeypatch, is_found):
    """Cancelled while it waits, and when it has its records but its task no longer takes them."""
    polled, may_return = threading.Event(), threading.Event()
    original = Consumer.poll

    def poll(self, *args):
        polled.set()
        records = original(self, *args)
        if is_found and records:
            may_return.wait(10)
        return records

    async def main():
        with Producer(orders) as producer:
            if is_found:
                producer.send("orders", b"1").result(10)
            async with AsyncConsumer(orders, "orders", group="g", auto_offset_reset="earliest") as consumer:
                monkeypatch.setattr(Consumer, "poll", poll)
                task = asyncio.create_task(consumer.poll(10_000))
                while not polled.is_set() or (is_found and not consumer.assignment()):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                may_return.set()
                if not is_found:
                    producer.send("orders", b"1").result(10)
                record_values = []
                while not record_values:
                    record_values = [record.value for record in await consumer.poll(1_000)]
                assert record_values == [b"1"]
                key = TopicPartition("orders", 0)
                await consumer.commit()
                assert (await consumer.committed([key]))[key].offset == await consumer.position(key) == 1
                await consumer.seek(key, 0)
                assert len(await consumer.poll(1_000)) == (await consumer.end_offsets([key]))[key] == 1

    asyncio.run(main())


@pytest.mark.parametrize("is_last_first", [False, True])
def test_two_polls_that_are_cancelled_together_lose_nothing(orders, monkeypatch, is_last_first):
    ended = threading.Semaphore(0)
    original = Consumer.poll

    def poll(self, *args):
        records = original(self, *args)
        ended.release()
        return records

    async def main():
        with Producer(orders) as producer:
            for number in range(4):
                producer.send("orders", b"%d" % number).result(10)
        async with AsyncConsumer(orders, "orders", auto_offset_reset="earliest") as consumer:
            monkeypatch.setattr(Consumer, "poll", poll)
            tasks = [asyncio.create_task(consumer.poll(60_000, 2)) for _ in range(2)]
            await asyncio.sleep(0)
            for _ in tasks:
                assert ended.acquire(timeout=60)  # the loop stands still: no task gets its records
            for task in reversed(tasks) if is_last_first else tasks:
                task.cancel()
            assert all(
                isinstance(outcome, asyncio.CancelledError)
                for outcome in await asyncio.gather(*tasks, return_exceptions=True)
            )
            record_values = []
            while len(record_values) < 4:
                record_values += [record.value for record in await consumer.poll(60_000)]
            assert record_values == [b"0", b"1", b"2", b"3"]

    asyncio.run(main())


def test_a_poll_that_is_cancelled_before_its_turn_does_not_end_the_one_that_runs(orders, monkeypatch):
    polled = threading.Event()
    original = Consumer.poll

    def poll(self, *args):
        polled.set()
        return original(self, *args)

    async def main():
        monkeypatch.setattr(Consumer, "poll", poll)
        async with AsyncConsumer(orders, "orders", auto_offset_reset="earliest") as consumer:
            running = asyncio.create_task(consumer.poll(10_000))
            while not polled.is_set():
                await asyncio.sleep(0.01)
            queued = asyncio.create_task(consumer.poll(10_000))
            await asyncio.sleep(0)
            queued.cancel()
            with pytest.raises(asyncio.CancelledError):
                await queued
            with Producer(orders) as producer:
                producer.send("orders", b"1").result(10)
            assert [record.value for record in await running] == [b"1"]

    asyncio.run(main())


def test_a_store_gives_both(tmp_path):
    import spark_replog

    store = spark_replog.init(str(tmp_path / "store"), fsync=False)
    store.admin().create_topic("orders", partitions=1, replicas=1)

    async def main():
        async with store.async_producer() as producer, store.async_consumer() as consumer:
            await consumer.assign([TopicPartition("orders", 0)])
            await producer.send_and_wait("orders", b"v")
            await consumer.subscribe(["orders"])
            await consumer.seek(TopicPartition("orders", 0), 0) if consumer.assignment() else None

    with pytest.raises(InvalidConfigError):  # assigned and subscribed
        asyncio.run(main())


def test_a_client_that_is_closed_or_was_not_opened_refuses_calls_with_a_code(orders):
    async def code_of(call):
        with pytest.raises(ReplogError) as refused:
            await call
        return refused.value.code

    async def main():
        producer = AsyncProducer(orders)
        assert await code_of(producer.send("orders", b"v")) is ErrorCode.INVALID_REQUEST
        consumer = AsyncConsumer(orders, "orders")
        assert await code_of(consumer.poll()) is ErrorCode.INVALID_REQUEST
        async with producer, consumer:
            pass
        assert await code_of(producer.send("orders", b"v")) is ErrorCode.REPLOG_PRODUCER_CLOSED
        assert await code_of(producer.partitions_for("orders")) is ErrorCode.REPLOG_PRODUCER_CLOSED
        assert await code_of(consumer.poll()) is ErrorCode.INVALID_REQUEST
        assert await code_of(consumer.commit()) is ErrorCode.INVALID_REQUEST
        await producer.close()
        await consumer.close()

    asyncio.run(main())


def test_an_async_loop_that_ends_early_counts_only_the_records_that_it_got(orders):
    settings = {"group": "g", "auto_offset_reset": "earliest"}
    key = TopicPartition("orders", 0)

    async def main():
        async with AsyncProducer(orders) as producer:
            for number in range(10):
                await producer.send("orders", b"%d" % number)
        async with AsyncConsumer(orders, "orders", **settings) as consumer:
            async for record in consumer:
                if record.offset == 2:
                    break
            assert await consumer.position(key) == 3
            async for record in consumer:
                await consumer.commit()
                assert (await consumer.committed([key]))[key].offset == record.offset + 1 == 4
                break
        assert await values(orders, 1, group="g") == [b"4"]

    asyncio.run(main())
