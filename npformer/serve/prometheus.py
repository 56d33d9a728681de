"""Metrics for Prometheus at /metrics: requests by route and status, the queue, the batches.

With several processes, PROMETHEUS_MULTIPROC_DIR names a shared folder, and each process shows the sums.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from npformer.serve.batching import Entry

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 64, 256, 1024, 4096, 16384)


class Metrics:
    """The counters of one app."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        counter, histogram, gauge = (
            partial(kind, namespace="npformer", registry=self.registry) for kind in (Counter, Histogram, Gauge)
        )
        arrival = "Seconds from a request's arrival to its answer"
        self.requests = counter("requests", "Requests by route and status", ["route", "status"])
        self.seconds = histogram("request_seconds", arrival, ["route"], buckets=SECONDS)
        self.gone = counter("requests_gone", "Requests whose client disconnected before the answer")
        self.tokens = counter("tokens", "Tokens computed")
        self.batch_texts = histogram("batch_texts", "Texts per batch", buckets=TEXTS)
        self.batch_tokens = histogram("batch_tokens", "Tokens per batch", buckets=TOKENS)
        self.batch_seconds = histogram("batch_seconds", "Seconds to compute a batch", buckets=SECONDS)
        self.wait_seconds = histogram(
            "wait_seconds", "Seconds that a text waits before it is computed", buckets=SECONDS
        )
        self.queue = gauge("queue_texts", "Texts waiting in the queue", multiprocess_mode="livesum")
        self.waiting = waiting

    def request(self, route: str, status: int, seconds: float, gone: bool) -> None:
        """Counts a request once its answer begins."""
        self.requests.labels(route, status).inc()
        self.seconds.labels(route).observe(seconds)
        self.gone.inc(gone)

    def batch(self, batch: Sequence[Entry], seconds: float) -> None:
        """Counts a batch that has just been computed."""
        started = time.monotonic() - seconds
        tokens = sum(entry.size for entry in batch)
        self.tokens.inc(tokens)
        self.batch_texts.observe(len(batch))
        self.batch_tokens.observe(tokens)
        self.batch_seconds.observe(seconds)
        for entry in batch:
            self.wait_seconds.observe(max(0.0, started - entry.arrived))

    def shown(self) -> bytes:
        """All metrics in Prometheus' text format."""
        self.queue.set(self.waiting())
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)
        return generate_latest(together)
