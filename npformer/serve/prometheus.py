"""Metrics for Prometheus at /metrics: requests by route and status, the queue and the batches.

With several processes, PROMETHEUS_MULTIPROC_DIR names a shared folder, and each process reports the sums over all
processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from npformer.serve.pages import METRICS
from npformer.serve.turns import Entry

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 64, 256, 1024, 4096, 16384)


class Metrics:
    """The counters of one app."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()

        def made(kind: Any, name: str, *labels: str, **how: Any) -> Any:
            return kind(name, METRICS[name], labels, namespace="npformer", registry=self.registry, **how)

        self.requests = made(Counter, "requests_total", "route", "status")
        self.seconds = made(Histogram, "request_seconds", "route", buckets=SECONDS)
        self.gone = made(Counter, "requests_gone_total")
        self.tokens = made(Counter, "tokens_total")
        self.batch_texts = made(Histogram, "batch_texts", buckets=TEXTS)
        self.batch_tokens = made(Histogram, "batch_tokens", buckets=TOKENS)
        self.batch_seconds = made(Histogram, "batch_seconds", buckets=SECONDS)
        self.wait_seconds = made(Histogram, "wait_seconds", buckets=SECONDS)
        self.queue = made(Gauge, "queue_texts", multiprocess_mode="livesum")
        self.waiting = waiting

    def request(self, route: str, status: int, seconds: float, gone: bool) -> None:
        """Counts a request when its answer begins."""
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
        """Returns all metrics in Prometheus's text format."""
        self.queue.set(self.waiting())
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)
        return generate_latest(together)
