"""A query while topics are written, grown, trimmed, deleted and made again, with crashes: by random schedules.

With ``failOnDataLoss=false`` no row comes twice, and every row that is still there at the end has come.
"""

from __future__ import annotations

import json
import random

import pytest


class Storm:
    """One schedule: the store, the query in either of Spark's protocols, and what it committed."""

    def __init__(self, source, seed):
        self.source = source
        self.random = random.Random(seed)
        self.is_old_spark = self.random.random() < 0.3
        self.options = {
            "subscribePattern": "t-.*",
            "startingOffsets": self.random.choice(["earliest", "latest"]),
            "failOnDataLoss": "false",
            "maxPartitions": "2",
        }
        if self.random.random() < 0.5:
            self.options["maxOffsetsPerTrigger"] = str(self.random.randint(1, 6))
        self.names = ["t-a", "t-b"]
        self.seen: dict[tuple[str, int], set[int]] = {}
        self.start: dict | None = None
        self.first_starts: dict[tuple[str, int], int] = {}
        source.topic("t-a", 2)
        self.start_process()

    def start_process(self):
        self.reader = self.source.stream(**self.options)
        if self.is_old_spark and self.start is not None:
            assert list(self.reader.partitions(self.start, self.start)) == []

    # ---------------------------------------------------------------------------------- the store

    def live(self):
        return sorted(name for name in self.source.cluster.topic_names() if name in self.names)

    def change(self):
        name = self.random.choice(self.names)
        action = self.random.choice(["write"] * 6 + ["grow", "trim", "trim", "delete"])
        if name not in self.live():
            self.source.topic(name, self.random.randint(1, 3))
            action = "write"
        partitions = self.source.controller.describe_topic(name).partitions
        if action == "write":
            rows = {part.partition: self.random.randint(0, 4) for part in partitions}
            self.source.write(name, {number: count for number, count in rows.items() if count} or {0: 1})
        elif action == "grow" and len(partitions) < 5:
            self.source.controller.add_partitions(name, len(partitions) + 1)
        elif action == "trim":
            part = self.random.choice(partitions)
            offset = self.random.randint(part.log_start_offset, part.high_watermark)
            self.source.controller.delete_records(name, {part.partition: offset})
        elif action == "delete":
            self.source.controller.delete_topic(name)

    # ---------------------------------------------------------------------------------- the query

    def batch(self):
        """Run one micro-batch; it may crash after it was planned, which repeats it. True where it had news."""
        is_first = self.start is None
        if self.is_old_spark:
            end = self.reader.latestOffset()
            start = self.reader.initialOffset() if is_first else self.start
        else:
            start = self.reader.initialOffset() if is_first else self.start
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        end = json.loads(json.dumps(end))
        if not is_first and json.dumps(end) == json.dumps(self.start):
            return False
        rows = self.source.rows(self.reader, self.reader.partitions(start, end))
        if self.random.random() < 0.25:
            if self.random.random() < 0.5:
                self.change()
            self.start_process()
            start = self.reader.initialOffset() if is_first else self.start
            rows = self.source.rows(self.reader, self.reader.partitions(start, end))
        if is_first:
            for topic, ends in end["@"]["from"].items():
                for number, offset in ends.items():
                    self.first_starts[end["@"]["ids"][topic], int(number)] = offset
        self.commit(rows, end)
        return True

    def commit(self, rows, end):
        for key, offsets in rows.items():
            topic, number = key.rsplit("-", 1)
            where = end["@"]["ids"][topic], int(number)
            assert offsets == sorted(offsets), f"{key} came out of order"
            fresh = self.seen.setdefault(where, set())
            assert not fresh.intersection(offsets), f"{key} came twice"
            assert len(set(offsets)) == len(offsets)
            fresh.update(offsets)
        self.start = end


@pytest.mark.guarantee("G10b")
@pytest.mark.parametrize("seed", [*range(8), 77, 110])
def test_no_row_comes_twice_and_none_that_is_there_is_missing(source, seed):
    storm = Storm(source, seed)
    for _ in range(14):
        storm.random.choice([storm.change, storm.batch])()
    for _ in range(200):
        if not storm.batch():
            break
    else:
        raise AssertionError("the query never came to an end")
    for name in storm.live():
        topic = source.controller.describe_topic(name)
        for part in topic.partitions:
            where = topic.topic_id, part.partition
            first = max(part.log_start_offset, storm.first_starts.get(where, 0))
            missing = set(range(first, part.high_watermark)) - storm.seen.get(where, set())
            assert not missing, f"{name}-{part.partition} lost {sorted(missing)}"
