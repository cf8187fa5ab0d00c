"""The vendor's door: tenants' keys, lengths by route of the protocol, and counts of what passed."""

from __future__ import annotations

import logging
import re

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from cutlayer.serving.door import App, Door, Visit
from cutlayer.vendor.keys import METRICS, Doorkeeper
from cutlayer.vendor.metrics import Metrics
from cutlayer.vendor.problems import refusal_for
from cutlayer.vendor.settings import Limits
from cutlayer.wire import ROUTES, Route
from cutlayer.wire.messages import MAX_CONTROL_BYTES

_PATTERNS = [(route, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.path))) for route in ROUTES.values()]


class VendorDoor(Door):
    """Wraps the vendor's application.

    Args:
        app: The application.
        doorkeeper: Whose keys are whose.
        limits: What one request and one tenant may take.
        metrics: Where requests are counted.
    """

    open_paths = frozenset({"/healthz", "/metrics", "/openapi.json"})
    wanted = "a key that the vendor made for you"

    def __init__(self, app: App, *, doorkeeper: Doorkeeper, limits: Limits, metrics: Metrics) -> None:
        super().__init__(
            app,
            body_seconds=limits.body_seconds,
            requests_at_once=limits.requests_per_tenant,
            books=logging.getLogger("cutlayer.vendor.requests"),
        )
        self._doorkeeper = doorkeeper
        self._limits = limits
        self._metrics = metrics

    def meant(self, method: str, path: str) -> tuple[str, int]:
        """See `Door.meant`."""
        limits, found = self._limits, route_of(method, path)
        if found is None:
            return "other", min(limits.max_control_bytes, MAX_CONTROL_BYTES)
        route, _ = found
        if not route.tensors:
            return route.name, min(limits.max_control_bytes, MAX_CONTROL_BYTES)
        return route.name, limits.max_body_bytes if route.name == "shard.put" else limits.max_step_bytes

    async def owner(self, key: str) -> str | None:
        """See `Door.owner`."""
        tenant = self._doorkeeper.remembered(key) or await run_in_threadpool(self._doorkeeper.tenant, key)
        return None if tenant == METRICS else tenant

    def response(self, error: Exception) -> Response:
        """See `Door.response`."""
        return refusal_for(error).response()

    def enter(self, owner: str) -> None:
        """See `Door.enter`."""
        super().enter(owner)
        self._metrics.in_progress.inc()

    def leave(self, owner: str) -> None:
        """See `Door.leave`."""
        super().leave(owner)
        self._metrics.in_progress.dec()

    def answered(self, owner: str, name: str, visit: Visit, seconds: float) -> None:
        """See `Door.answered`."""
        super().answered(owner, name, visit, seconds)
        self._metrics.requests.labels(owner, name, visit.status).inc()
        self._metrics.bytes.labels(owner, name, "up").inc(visit.received)
        self._metrics.bytes.labels(owner, name, "down").inc(visit.sent)
        self._metrics.seconds.labels(name).observe(seconds)


def route_of(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route that a request is meant for, and what stands in its path; None where there is no such route."""
    for route, pattern in _PATTERNS:
        if route.method == method and (match := pattern.fullmatch(path)):
            return route, match.groupdict()
    return None
