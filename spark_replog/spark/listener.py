"""A listener for any Spark session that reports how far its queries are behind in replog's topics.

Runs in the driver's Python process. Spark's own progress reports contain no lag for Python sources.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_replog.cluster.cluster import Cluster, StorePath
from spark_replog.health.metrics import Sample, call_samples, reader_samples
from spark_replog.health.readers import Limits, Reader, Verdict, judge
from spark_replog.log.log_offset import META_KEY, LogOffset
from spark_replog.monitor.query_monitor import Batch, Checkpoint, QueryMonitor
from spark_replog.spark import call_spool
from spark_replog.storage.call_counter import NamedCalls, calls_from_json, summed

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_LOG = logging.getLogger(__name__)
BATCHES_KEPT = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Query:
    """State of one query, from its events."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches: deque[Batch] = deque(maxlen=BATCHES_KEPT)
        self.last_sign_ms = 0
        self.verdict: Verdict | None = None
        self.rates: dict[str, float] = {}
        self.sink_calls: NamedCalls = {}
        self.source_calls: dict[str, NamedCalls] = {}
        """The newest report of each process."""


class ReplogListener(StreamingQueryListener):
    """Reports how far each query is behind, in rows, bytes and time, with a verdict: in log lines, and as metrics.

    A change of the verdict is logged once, as JSON after ``replog query ``; nothing is logged per batch. An error here
    never affects a query. Thread-safe.

    ```python
    listener = spark_replog.ReplogListener("/data/store")
    spark.streams.addListener(listener)
    listener.register(prometheus_client.REGISTRY)      # optional
    ```

    Args:
        store: path of the store, as for the source.
        storage_options: as for ``spark_replog.open``.
        limits: of the verdicts.
        principal: that reads; None: see ``default_principal``.
    """

    def __init__(
        self,
        store: StorePath | Cluster,
        storage_options: Mapping[str, str] | None = None,
        *,
        limits: Limits | None = None,
        principal: str | None = None,
    ) -> None:
        self._cluster = Cluster.of(store, storage_options or {})
        self._monitor = QueryMonitor(self._cluster, principal)
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}

    def register(self, registry: CollectorRegistry) -> None:
        """Serve the queries' metrics from a registry of ``prometheus_client``; each scrape folds new entries."""
        from spark_replog.monitor.exporter import SampleCollector

        registry.register(SampleCollector(self.samples))

    def readers(self) -> list[Reader]:
        """Return the current state of each query, with its verdict. Raises the errors of ``QueryMonitor.describe``."""
        with self._lock:
            queries = list(self._queries.values())
        return [self._look(query) for query in queries if query.batches]

    def samples(self) -> Mapping[str, list[Sample]]:
        """Return the metrics of all queries."""
        metrics = reader_samples(self.readers())
        for name, calls in self.storage_calls().items():
            for metric, samples in call_samples("query", name, calls).items():
                metrics.setdefault(metric, []).extend(samples)
        with self._lock:
            for query in self._queries.values():
                for name, value in query.rates.items():
                    metrics.setdefault(name, []).append(Sample((query.name,), value))
        return metrics

    def onQueryStarted(self, event: Any) -> None:
        """Start following a query."""
        with self._lock:
            self._queries[str(event.id)] = _Query(event.name or str(event.id))
        call_spool.listen(str(event.id))

    def onQueryProgress(self, event: Any) -> None:
        """Record a finished batch; log the verdict if it changed."""
        try:
            with self._lock:
                query_id = str(event.progress.id)
                query = self._queries.setdefault(query_id, _Query(event.progress.name or query_id))
            self._count_calls(query, event.progress)
            self._progress(query, event.progress)
        except Exception as error:  # no error may reach the query's listeners
            _LOG.warning("the lag of query %s is not known: %s", event.progress.id, error)

    def onQueryIdle(self, event: Any) -> None:
        """Note that the query is alive."""
        with self._lock:
            query = self._queries.get(str(event.id))
            if query is not None:
                query.last_sign_ms = _time_ms(event.timestamp)

    def onQueryTerminated(self, event: Any) -> None:
        """Forget a query."""
        with self._lock:
            self._queries.pop(str(event.id), None)
        call_spool.end(str(event.id))

    def storage_calls(self) -> dict[str, NamedCalls]:
        """Return each query's calls to the roots: calls, bytes and retries by broker, kind and purpose.

        For sinks: planning, tasks and commits; for sources: the process that plans, with Spark 4.2 and up. Reads of
        source tasks are not reported: the fetch plan has about one ranged get per object and task. Works only if the
        listener runs on the driver's host, not over Spark Connect.
        """
        with self._lock:
            return {
                query.name: summed([query.sink_calls, *query.source_calls.values()]) for query in self._queries.values()
            }

    def _count_calls(self, query: _Query, progress: Any) -> None:
        left = call_spool.collect(str(progress.id))
        with self._lock:
            query.sink_calls = summed([query.sink_calls, left])
            for source in progress.sources:
                text = getattr(source, "latestOffset", None)
                value = json.loads(text) if text and META_KEY in text else None
                meta = value.get(META_KEY) if isinstance(value, dict) else None
                if isinstance(meta, dict) and "calls" in meta:
                    query.source_calls[str(meta.get("process"))] = calls_from_json(meta["calls"])

    def _progress(self, query: _Query, progress: Any) -> None:
        sources = [
            LogOffset.from_json(value)
            for source in progress.sources
            if source.endOffset and META_KEY in source.endOffset
            for value in [json.loads(source.endOffset)]
            if isinstance(value, dict) and META_KEY in value
        ]
        if not sources:
            return
        time_ms = _time_ms(progress.timestamp)
        with self._lock:
            if not query.batches or query.batches[-1].batch_id != progress.batchId:
                query.batches.append(Batch(progress.batchId, time_ms, tuple(sources)))
            query.last_sign_ms = time_ms
            query.rates = {
                "replog_query_input_rows_per_second": float(progress.inputRowsPerSecond or 0),
                "replog_query_processed_rows_per_second": float(progress.processedRowsPerSecond or 0),
                "replog_query_batch_duration_seconds": float(progress.batchDuration or 0) / 1000,
            }
        reader = self._look(query)
        if reader.verdict is query.verdict:
            return
        was, query.verdict = query.verdict, reader.verdict
        if was is None and reader.verdict is Verdict.OK:
            return
        event = {
            "event": "verdict",
            "query": query.name,
            "queryId": str(progress.id),
            "batch": progress.batchId,
            "verdict": reader.verdict.value,
            "was": None if was is None else was.value,
            "lag": reader.lag,
            "lagMs": reader.lag_ms,
            "reason": reader.reason,
        }
        level = logging.INFO if reader.verdict is Verdict.OK else logging.WARNING
        _LOG.log(level, "replog query %s", json.dumps(event))

    def _look(self, query: _Query) -> Reader:
        with self._lock:
            done, sign_ms = tuple(query.batches), query.last_sign_ms
        reader = replace(self._monitor.describe(Checkpoint(query.name, "", done, None)), last_sign_ms=sign_ms)
        return judge(reader, self._cluster.clock.now_ms(), self._limits)


def _time_ms(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)  # exact, unlike a float
