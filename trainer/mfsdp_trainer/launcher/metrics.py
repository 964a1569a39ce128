"""/metrics: the progress of the run as Prometheus gauges."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from mfsdp_trainer.contract import Phase

from .view import View

_GAUGES: Final = {
    "step": "Finished optimizer steps.",
    "total_steps": "Optimizer steps of the whole run.",
    "loss": "Mean loss per token of the last step, over all ranks.",
    "eval_loss": "Mean loss per token on held-out text at the last evaluation.",
    "grad_norm": "Global gradient norm of the last step, before clipping.",
    "learning_rate": "Learning rate of the last step.",
    "tokens_per_second": "Trained tokens a second over all ranks.",
    "eta_seconds": "Estimated seconds until the last step.",
    "checkpoint_step": "Step of the newest published checkpoint.",
    "resumed_from_step": "Step of the checkpoint that this attempt went on from.",
    "updated_at": "When rank 0 published these numbers, in Unix seconds.",
}


class _RunCollector(Collector):
    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[GaugeMetricFamily]:
        progress = self._view.progress()
        for name, help_text in _GAUGES.items():
            value = getattr(progress, name)
            if value is not None:
                yield GaugeMetricFamily(f"mfsdp_{name}", help_text, value=value)
        yield GaugeMetricFamily("mfsdp_attempt", "Attempt of the job.", value=progress.attempt)
        phase = GaugeMetricFamily("mfsdp_phase", "1 for what the run does now.", labels=["phase"])
        for one in Phase:
            phase.add_metric([one], float(one is progress.phase))
        yield phase
        silence = GaugeMetricFamily(
            "mfsdp_rank_silent_seconds",
            "Seconds since the last sign of life of each rank of this node.",
            labels=["rank"],
        )
        for rank, seconds in (self._view.silent_seconds or {}).items():
            silence.add_metric([str(rank)], seconds)
        yield silence


def render(view: View, accept: str) -> tuple[bytes, str]:
    """The metrics in the format that the scraper accepts, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RunCollector(view))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
