"""Metrics for Prometheus at /metrics: requests by route and status, the queue, the batches.

With several processes, PROMETHEUS_MULTIPROC_DIR names a shared folder, and each process shows the sums.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from npformer.serve.batching import Entry

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 64, 256, 1024, 4096, 16384)


class Metrics:
    """The counters of one app."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "npformer_requests", "Requests by route and status", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "npformer_request_seconds", "Seconds from a request's arrival to its answer", ["route"], buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self.gone = Counter(
            "npformer_requests_gone", "Requests whose client disconnected before the answer", registry=registry
        )
        self.tokens = Counter("npformer_tokens", "Tokens computed", registry=registry)
        self.batch_texts = Histogram("npformer_batch_texts", "Texts per batch", buckets=TEXTS, registry=registry)
        self.batch_tokens = Histogram("npformer_batch_tokens", "Tokens per batch", buckets=TOKENS, registry=registry)
        self.batch_seconds = Histogram(
            "npformer_batch_seconds", "Seconds to compute a batch", buckets=SECONDS, registry=registry
        )
        self.wait_seconds = Histogram(
            "npformer_wait_seconds",
            "Seconds that a text waits before it is computed",
            buckets=SECONDS,
            registry=registry,
        )
        self.queue = Gauge(
            "npformer_queue_texts", "Texts waiting in the queue", registry=registry, multiprocess_mode="livesum"
        )
        self.waiting = waiting

    def request(self, route: str, status: int, seconds: float, gone: bool) -> None:
        """Counts a request once its answer begins."""
        self.requests.labels(route, status).inc()
        self.seconds.labels(route).observe(seconds)
        self.gone.inc(gone)

    def batch(self, batch: Sequence[Entry], started: float, seconds: float) -> None:
        """Counts a batch that has been computed."""
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
