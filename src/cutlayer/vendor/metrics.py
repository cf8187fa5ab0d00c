"""What an operator watches: counts and times per tenant and route, never content."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_STEP_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """Counters of one vendor process, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "cutlayer_requests", "Requests answered.", ["tenant", "route", "status"], registry=self._registry
        )
        self.bytes = Counter(
            "cutlayer_body_bytes", "Bytes of bodies.", ["tenant", "route", "direction"], registry=self._registry
        )
        self.seconds = Histogram(
            "cutlayer_request_seconds",
            "Time from a request's head to its answer.",
            ["route"],
            buckets=_STEP_SECONDS,
            registry=self._registry,
        )
        self.live_jobs = Gauge("cutlayer_live_jobs", "Jobs in memory.", registry=self._registry)
        self.live_job_bytes = Gauge(
            "cutlayer_live_job_bytes",
            "Memory that jobs hold between frames: weights, gradients, moments, last answers.",
            registry=self._registry,
        )
        self.live_adapters = Gauge("cutlayer_live_adapters", "Published adapters in memory.", registry=self._registry)
        self.live_adapter_bytes = Gauge(
            "cutlayer_live_adapter_bytes",
            "Memory that published adapters hold, without what they share with their model.",
            registry=self._registry,
        )
        self.graph_bytes = Gauge(
            "cutlayer_graph_bytes", "About the memory of steps that wait for their gradient.", registry=self._registry
        )
        self.generations = Gauge("cutlayer_generations", "Generation sessions.", registry=self._registry)
        self.generation_bytes = Gauge(
            "cutlayer_generation_bytes",
            "Memory set aside for the caches of generation sessions.",
            registry=self._registry,
        )
        self._waiting_seconds = Histogram(
            "cutlayer_compute_wait_seconds",
            "Time that a piece of work waited until the compute thread served its tenant.",
            ["tenant"],
            buckets=_STEP_SECONDS,
            registry=self._registry,
        )
        self._compute_seconds = Histogram(
            "cutlayer_compute_seconds",
            "Time that the compute thread worked on a piece of work, for which all others wait.",
            ["tenant"],
            buckets=_STEP_SECONDS,
            registry=self._registry,
        )
        self.in_progress = Gauge("cutlayer_requests_in_progress", "Requests in progress.", registry=self._registry)

    def computed(self, tenant: str, waited: float, took: float) -> None:
        """Counts a piece of work of the compute thread.

        Args:
            tenant: Whose it was.
            waited: Seconds before it was begun.
            took: Seconds that it took.
        """
        self._waiting_seconds.labels(tenant).observe(waited)
        self._compute_seconds.labels(tenant).observe(took)

    def render(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self._registry)
