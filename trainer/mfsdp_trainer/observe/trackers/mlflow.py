"""`logging.mlflow`: MLflow's tracking server, one run there for all attempts of a job."""

import os
from typing import TYPE_CHECKING, Final

from mfsdp_trainer.config.logs import MlflowConfig

from .record import Kind, Record
from .tensorboard import PREFIXES

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

_UID_TAG: Final = "mfsdp.job_uid"
_TAG_LENGTH: Final = 5000


class Mlflow:
    """Numbers through the client API alone: no global state, no autologging."""

    def __init__(self, config: MlflowConfig, name: str, run_id: str) -> None:
        """`run_id` finds the run of an earlier attempt again; empty: a new one."""
        self._config = config
        self._name = name
        self._uid = run_id
        self._run: tuple[MlflowClient, str] | None = None

    def take(self, record: Record) -> None:
        """See `Tracker.take`."""
        if self._run is None:
            self._run = self._open()
        client, run = self._run
        if record.kind in (Kind.RUN, Kind.END):
            for name, value in record.values.items():
                client.set_tag(run, f"mfsdp.{name}", str(value)[:_TAG_LENGTH])
        elif record.kind in PREFIXES:
            client.log_batch(run, metrics=_metrics(record))

    def _open(self) -> "tuple[MlflowClient, str]":
        # Unasked, MLflow tells its makers how it is used.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient  # a second to import

        client = MlflowClient(self._config.tracking_uri)
        return client, self._find(client) or self._create(client)

    def _experiment(self, client: "MlflowClient") -> str:
        found = client.get_experiment_by_name(self._config.experiment)
        return str(
            found.experiment_id if found else client.create_experiment(self._config.experiment)
        )

    def _find(self, client: "MlflowClient") -> str | None:
        """The run of an earlier attempt of this job."""
        if not self._uid:
            return None
        query = f"tags.`{_UID_TAG}` = '{self._uid}'"
        for run in client.search_runs([self._experiment(client)], query, max_results=1):
            client.update_run(run.info.run_id, status="RUNNING")
            return str(run.info.run_id)
        return None

    def _create(self, client: "MlflowClient") -> str:
        tags = {_UID_TAG: self._uid} if self._uid else {}
        name = self._config.name or self._name or None
        run = client.create_run(self._experiment(client), tags=tags, run_name=name)
        return str(run.info.run_id)

    def close(self, *, well: bool) -> None:
        """See `Tracker.close`."""
        if self._run is not None:
            client, run = self._run
            client.set_terminated(run, "FINISHED" if well else "FAILED")


def _metrics(record: Record) -> "list[Metric]":
    from mlflow.entities import Metric

    stamp, prefix = round(record.time * 1000), PREFIXES[record.kind]
    return [
        Metric(f"{prefix}/{name}", number, stamp, record.step)
        for name, number in record.numbers.items()
    ]
