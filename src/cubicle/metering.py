"""What measures and limits the whole service: made once, and connected to the parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from cubicle import removal
from cubicle.core.keys import KeyRing
from cubicle.mcp_api.tracing import exporting
from cubicle.metrics.loop_lag import LoopLag
from cubicle.metrics.metrics import Metrics
from cubicle.metrics.recent_file import RecentFile
from cubicle.quotas.quotas import Quotas
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.round_trips import RoundTrips
from cubicle.settings import Settings
from cubicle.tools.limited import limited
from cubicle.tools.measured import measured
from cubicle.tools.registry import Registry
from cubicle.worker.egress_reports import counted_by
from cubicle.worker.network import NetworkWorker


class Metering:
    """The metrics, traces and quotas of one service, and what feeds them."""

    def __init__(
        self,
        settings: Settings,
        network: NetworkWorker,
        keys: KeyRing | None = None,
        own: Callable[[Path], Path] = lambda path: path,
        others: Callable[[Path], Sequence[Path]] = lambda path: (),
    ) -> None:
        """`own`: where one of several processes keeps what each keeps for itself; `others`: where the others do."""
        self.metrics = Metrics(tenants=settings.metrics_tenants)
        self._file = RecentFile(self.metrics.recent, own(removal.metrics_folder(settings.data_dir)))
        self._collector = settings.otel_exporter_otlp_endpoint
        self.lag = LoopLag(self.metrics.loop_lag.observe)
        self.attached = RoundTrips(self.metrics.round_trip.observe).attached
        """For the fleet."""
        network.egress.listen(counted_by(self.metrics))
        self.quotas = Quotas(settings, self.metrics, self.lag, network.egress, keys, own, others)
        network.egress.listen(self.quotas.take)
        network.budgets.user_of = self.quotas.user_of
        self.budgets = network.budgets

    def tools(self, registry: Registry) -> Registry:
        return limited(measured(registry, self.metrics), self.quotas)

    @asynccontextmanager
    async def running(self, fleet: Fleet) -> AsyncIterator[None]:
        fleet.admission = self.quotas.admitted
        fleet.on_removed(self.quotas.forget)
        fleet.on_removed(lambda chat: self.metrics.recent.forget(chat.id, chat.tenant))
        traced = exporting(self._collector) if self._collector else nullcontext()
        async with self._file.kept(), self.lag.measured(), traced, self.quotas.running(fleet):
            yield
