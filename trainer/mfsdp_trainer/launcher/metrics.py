"""/metrics: the progress of the run for Prometheus. The table in docs/jobs.md is checked by a test.

Units are in the names (seconds, bytes, ratio), what only grows ends in _total, and job and attempt
are told once, by `mfsdp_run_info`: what scrapes adds pod and namespace. Rank 0's node has all of
them; the others have what is by rank, and the step.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from mfsdp_trainer.contract import Phase, Progress
from mfsdp_trainer.observe.timeline import Part

from .view import View


class _Gauge(NamedTuple):
    """A number of /progress under its name here."""

    field: str
    metric: str
    text: str


GAUGES: Final = (
    _Gauge("step", "mfsdp_step", "Finished optimizer steps."),
    _Gauge("total_steps", "mfsdp_total_steps", "Optimizer steps of the whole run."),
    _Gauge("loss", "mfsdp_loss", "Mean loss per token of the last step, over all ranks."),
    _Gauge("eval_loss", "mfsdp_eval_loss", "Mean loss per token on held-out text."),
    _Gauge("grad_norm", "mfsdp_grad_norm", "Global gradient norm before clipping."),
    _Gauge("learning_rate", "mfsdp_learning_rate", "Learning rate of the last step."),
    _Gauge("tokens_per_second", "mfsdp_tokens_per_second", "Tokens a second over all ranks."),
    _Gauge(
        "tokens_per_second_per_rank", "mfsdp_rank_tokens_per_second", "Tokens a second of one rank."
    ),
    _Gauge("mfu", "mfsdp_mfu_ratio", "Model FLOPs utilisation, 0 to 1."),
    _Gauge("step_seconds", "mfsdp_step_seconds", "Mean time of a step in the last interval."),
    _Gauge("eta_seconds", "mfsdp_eta_seconds", "Estimated time until the last step."),
    _Gauge("peak_memory_bytes", "mfsdp_peak_memory_bytes", "The most memory that rank 0 has held."),
    _Gauge("checkpoint_step", "mfsdp_checkpoint_step", "Step of the newest checkpoint."),
    _Gauge(
        "checkpoint_seconds",
        "mfsdp_checkpoint_seconds",
        "How long the newest checkpoint held training up.",
    ),
    _Gauge("bad_records", "mfsdp_bad_records", "Records of the data that were left out."),
    _Gauge("resumed_from_step", "mfsdp_resumed_from_step", "Step that this attempt went on from."),
    _Gauge(
        "updated_at", "mfsdp_updated_timestamp_seconds", "When these numbers were taken (Unix)."
    ),
)


class _RunCollector(Collector):
    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        progress = self._view.progress()
        for gauge in GAUGES:
            value = getattr(progress, gauge.field)
            if value is not None:
                yield GaugeMetricFamily(gauge.metric, gauge.text, value=value)
        yield _info(progress)
        yield _phase(progress)
        yield CounterMetricFamily(
            "mfsdp_tokens", "Tokens that this attempt trained on.", value=progress.tokens
        )
        yield _times(progress)
        yield _by_rank(
            "mfsdp_rank_silent_seconds",
            "Time since the last sign of life of each rank of this node.",
            self._view.silent_seconds or {},
        )
        yield _by_rank(
            "mfsdp_rank_memory_bytes",
            "Memory that each rank of this node holds: of its GPU, or of the process without one.",
            self._view.memory_bytes(),
        )


def _info(progress: Progress) -> Metric:
    labels = {"job_uid": progress.job_uid, "attempt": str(progress.attempt)}
    return InfoMetricFamily("mfsdp_run", "Job and attempt of this pod.", value=labels)


def _phase(progress: Progress) -> Metric:
    phase = GaugeMetricFamily("mfsdp_phase", "1 for what the run does now.", labels=["phase"])
    for one in Phase:
        phase.add_metric([one], float(one is progress.phase))
    return phase


def _times(progress: Progress) -> Metric:
    times = CounterMetricFamily(
        "mfsdp_spent_seconds", "Time of this attempt by what it was spent on.", labels=["part"]
    )
    for part in Part:
        if part in progress.part_seconds:
            times.add_metric([part], progress.part_seconds[part])
    return times


def _by_rank(name: str, text: str, values: Mapping[int, float]) -> Metric:
    metric = GaugeMetricFamily(name, text, labels=["rank"])
    for rank, value in values.items():
        metric.add_metric([str(rank)], value)
    return metric


def render(view: View, accept: str) -> tuple[bytes, str]:
    """The metrics in the format that the scraper accepts, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RunCollector(view))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
