"""Which gateways run, by their notes; which is asked for what; who has an id."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from spark_replog.cluster.gateway_notes import GatewayNote, GatewayNoteName, GatewayNotes, newest
from spark_replog.cluster.init_store import init_cluster
from spark_replog.config.gateway import GatewayConfig
from spark_replog.errors import ErrorCode, InvalidConfigError, RetriableError
from spark_replog.gateway import live_gateways
from spark_replog.gateway.gateway import Gateway
from spark_replog.gateway.live_gateways import FORGOTTEN_MS, LiveGateways, Sightings
from spark_replog.gateway.placement import Node, Placement, rack_of
from spark_replog.health.gateways import SHOWN_MS, SILENT_INTERVALS
from spark_replog.health.metrics import collect
from spark_replog.health.store import Fault
from spark_replog.ids import new_id
from spark_replog.monitor.store_monitor import StoreMonitor, StoreWatch

RUNS = [f"{number:032x}" for number in range(4)]
KEYS = [f"orders-{number}" for number in range(3_000)]


@pytest.fixture
def cluster():
    return init_cluster(f"memory://gateways-{new_id()}", fsync=False)


def calls_for_notes(cluster):
    table = cluster.brokers.calls.read()
    return Counter({kind: calls.call_count for (_, kind, purpose), calls in table.items() if purpose == "notes"})


def note(port, interval_ms=100, rack=None, written_ms=0):
    return GatewayNote("127.0.0.1", port, rack, interval_ms, 0, written_ms, {"requests": port})


def name(node_id, run, number=1):
    return GatewayNoteName(node_id, RUNS[run], number)


def test_a_gateway_runs_while_the_number_of_its_note_grows():
    sightings = Sightings()
    assert sightings.see([name(1, 0), name(2, 1)], 0) == [name(1, 0), name(2, 1)], "both are new"
    sightings.learn({name(1, 0): note(1001), name(2, 1): note(1002, interval_ms=1000)})
    assert sightings.see([name(1, 0), name(1, 0, 2), name(2, 1)], 250) == [], "addresses do not change"
    assert sorted(node.node_id for node in sightings.nodes(549)) == [1, 2]
    assert [node.node_id for node in sightings.nodes(550)] == [2], "three of its own intervals are over"
    sightings.see([name(1, 0, 2), name(2, 1, 2)], 600)
    assert [node.port for node in sightings.nodes(600)] == [1002], "a note that is read again is no sign"
    sightings.see([name(2, 1, 2)], 700)
    sightings.see([name(1, 0, 3), name(2, 1, 2)], 800)
    assert [node.port for node in sightings.nodes(800)] == [1002], "it came back, and its note is read first"


def test_of_two_with_one_id_the_one_with_the_last_sign_counts_and_old_notes_are_forgotten():
    sightings = Sightings()
    notes = {name(1, 0): note(1001, 10**9), name(1, 1): note(1002, 10**9)}
    sightings.see(notes, 0)
    sightings.learn(notes)
    sightings.see([name(1, 0, 2), name(1, 1)], 10)
    assert sightings.nodes(10) == [Node(1, "127.0.0.1", 1001)]
    assert sightings.forgotten([name(1, 0, 2), name(1, 1)], FORGOTTEN_MS) == [name(1, 1)]


def test_names_and_notes_of_other_kinds_are_left_out():
    assert GatewayNoteName.parse(str(name(12, 3, 4))) == name(12, 3, 4)
    for text in ("", "gateway.1.2.3", f"{name(1, 1)}x", "0123456789abcdef.0123456789abcdef.000000000001.join"):
        assert GatewayNoteName.parse(text) is None
    assert GatewayNote.decode(note(7, rack="a").encode()) == note(7, rack="a")
    for data in (b"", b"[]", b"{}", b'{"v":2}', b'{"v":1}', note(7).encode().replace(b"127.0.0.1", b"\xff"),
                 note(7).encode().replace(b":7", b':"7"')):  # fmt: skip
        with pytest.raises(ValueError):
            GatewayNote.decode(data)
    assert newest([name(1, 0, 2), name(1, 1), name(1, 0, 10)]) == [name(1, 0, 10), name(1, 1)]


def test_partitions_are_spread_and_only_those_of_a_gateway_that_goes_move():
    three = Placement([Node(number, "h", number) for number in (3, 1, 2)])
    placed = {key: three.node_of(key) for key in KEYS}
    assert all(800 < count < 1200 for count in Counter(placed.values()).values())
    two = Placement([node for node in three.nodes if node.node_id != 2])
    moved = {key for key in KEYS if two.node_of(key) != placed[key]}
    assert moved == {key for key in KEYS if placed[key].node_id == 2}


def test_clients_of_a_rack_get_the_gateways_of_their_rack_if_it_has_any():
    nodes = Placement([Node(1, "h", 1, "a"), Node(2, "h", 2, "b"), Node(3, "h", 3, "b"), Node(4, "h", 4)])
    assert {nodes.node_of(key, "b").node_id for key in KEYS} == {2, 3}
    assert {nodes.node_of(key, "a").node_id for key in KEYS} == {1}
    assert {nodes.node_of(key, "none").node_id for key in KEYS} == {1, 2, 3, 4}
    assert [nodes.node_of(key, "none") for key in KEYS] == [nodes.node_of(key) for key in KEYS]
    texts = ("rack=a", "billing,rack=eu-1a,v=2", "x;rack=b", "billing", "track=a", "rack=", "")
    assert [rack_of(text) for text in texts] == ["a", "eu-1a", "b", None, None, None, None]


def live(cluster, node_id=None, fixed=(), interval_ms=20, **runs):
    config = GatewayConfig(gateway_heartbeat_interval_ms=interval_ms)
    gateway = Gateway(cluster, config, Node(0, "127.0.0.1", 1000 + int(new_id()[:2], 16)))
    return LiveGateways(gateway, node_id, fixed, lambda: {"requests": 1}, **runs), gateway


async def until(condition):
    async with asyncio.timeout(100):
        while not condition():
            await asyncio.sleep(0.005)


def test_gateways_take_free_ids_see_each_other_and_leave(cluster):
    async def main():
        pairs = [live(cluster) for _ in range(3)]
        await asyncio.gather(*(one.start() for one, _ in pairs))  # all at once
        beats = [asyncio.create_task(one.run()) for one, _ in pairs]
        nodes = sorted(gateway.node for _, gateway in pairs)
        assert len({node.node_id for node in nodes}) == 3
        await until(lambda: all(list(gateway.nodes()) == nodes for _, gateway in pairs))
        beats[0].cancel()
        await pairs[0][0].stop()
        await until(lambda: all(pairs[0][1].node not in gateway.nodes() for _, gateway in pairs[1:]))
        beats[1].cancel()  # without a word
        await until(lambda: list(pairs[2][1].nodes()) == [pairs[2][1].node])
        beats[2].cancel()

    asyncio.run(main())


def test_an_id_is_refused_while_its_gateway_runs_and_taken_over_when_its_note_stands_still(cluster):
    async def main():
        first, _ = live(cluster, 5, interval_ms=300)  # a busy machine keeps it from its sign for some moments
        await first.start()
        beat = asyncio.create_task(first.run())
        second, gateway = live(cluster, 5, interval_ms=300)
        with pytest.raises(InvalidConfigError) as caught:
            await second.start()
        assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        beat.cancel()
        await second.start()
        assert gateway.node.node_id == 5
        with pytest.raises(InvalidConfigError):  # the first was only stopped for long, and learns that it has no id
            await first.run()
        assert {name.run for name in GatewayNotes(cluster).names()} == {second._run}

    asyncio.run(main())


@pytest.mark.parametrize("node_id", [None, 5])
def test_in_the_place_of_one_that_has_surely_ended_a_gateway_takes_its_id_at_once(cluster, node_id, monkeypatch):
    async def main():
        hour_ms = 3_600_000  # to wait for three of them would not end
        first, before = live(cluster, node_id, interval_ms=hour_ms)
        await first.start()
        second, gateway = live(cluster, node_id, interval_ms=hour_ms, run=RUNS[0], ended_run=first._run)
        removed = []
        monkeypatch.setattr(GatewayNotes, "remove", lambda _, names: removed.extend(names))  # which may take a while
        await second.start()
        assert gateway.node.node_id == before.node.node_id
        assert {name.run for name in removed} == {first._run}
        assert list(gateway.nodes()) == [gateway.node]

    asyncio.run(main())


def test_a_store_that_does_not_answer_leaves_the_view_as_it_is(cluster, monkeypatch):
    async def main():
        one, gateway = live(cluster, interval_ms=10)
        await one.start()
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()

        def away(self):
            loop.call_soon_threadsafe(asked.set)
            raise RetriableError(ErrorCode.REPLOG_NO_QUORUM, "away")

        with monkeypatch.context() as patch:
            patch.setattr(GatewayNotes, "names", away)
            beat = asyncio.create_task(one.run())
            await asyncio.wait_for(asked.wait(), 100)
            assert not beat.done()
        number = one._number
        await until(lambda: one._number > number)
        assert list(gateway.nodes()) == [gateway.node]
        beat.cancel()

    asyncio.run(main())


def test_a_fixed_list_is_what_clients_get(cluster):
    async def main():
        fixed = [Node(0, "lb-0", 9092), Node(1, "lb-1", 9092)]
        one, gateway = live(cluster, fixed=fixed)
        await one.start()
        assert list(gateway.nodes()) == fixed
        assert gateway.controller() in fixed

    asyncio.run(main())


def test_notes_cost_one_list_one_write_and_one_delete_an_interval(cluster):
    async def main():
        one, _ = live(cluster)
        await one.start()
        before, number = calls_for_notes(cluster), one._number
        beat = asyncio.create_task(one.run())
        await until(lambda: one._number > number + 3)
        calls = calls_for_notes(cluster) - before
        beat.cancel()
        assert set(calls) <= {"list", "create", "delete"}
        assert all(3 <= calls[kind] <= 5 for kind in ("list", "create")), calls

    asyncio.run(main())


def test_a_look_at_the_store_shows_gateways_and_warns_of_silent_ones(cluster):
    notes, now_ms = GatewayNotes(cluster), cluster.clock.now_ms()
    notes.put(name(1, 0), note(1001, rack="a", written_ms=now_ms))
    notes.put(name(2, 1), note(1002, written_ms=now_ms - 100 * SILENT_INTERVALS - 60_000))
    notes.put(name(3, 2), note(1003, written_ms=now_ms - SHOWN_MS))
    view = StoreWatch(cluster).look()
    assert [(at.node_id, at.address, at.rack) for at in view.gateways] == [
        (1, "127.0.0.1:1001", "a"),
        (2, "127.0.0.1:1002", None),
    ]
    assert [finding.detail.split()[1] for finding in view.findings if finding.fault is Fault.GATEWAY_SILENT] == ["2"]
    samples = collect(view)
    values = {
        name: {sample.labels[0]: sample.value for sample in samples[name]} for name in samples if "gateway" in name
    }
    assert values["replog_gateway_up"] == {"1": 1, "2": 0}
    assert values["replog_gateway_requests"] == {"1": 1001, "2": 1002}
    assert not values["replog_gateway_connections"], "what a note does not say is not shown"
    assert live_gateways.MISSED_MAX < SILENT_INTERVALS
    assert StoreMonitor(cluster).look().gateways == (), "a command that does not show them does not ask"


def test_a_group_is_coordinated_by_the_gateway_that_was_asked_or_by_one_of_a_fixed_list(cluster):
    asked, other = Node(0, "127.0.0.1", 1000), Node(1, "127.0.0.1", 1001)
    gateway = Gateway(cluster, GatewayConfig(), asked)
    gateway.placement = Placement([asked, other])
    assert {gateway.coordinator(key) for key in KEYS} == {asked}, "it is alive"
    fixed = [Node(number, "balancer", 9000 + number) for number in range(2)]
    gateway.placement = Placement(fixed)
    assert {gateway.coordinator(key) for key in KEYS} == set(fixed), "clients reach no other address"
