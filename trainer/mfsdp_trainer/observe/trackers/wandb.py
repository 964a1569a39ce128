"""`logging.wandb`: Weights & Biases, one run there for all attempts of a job."""

from pathlib import Path
from typing import Any

from mfsdp_trainer.config.logs import WandbConfig

from .record import Kind, Record
from .tensorboard import PREFIXES


class Wandb:
    """Numbers go by their own `step`: W&B's counter refuses those that a resumed run repeats."""

    def __init__(self, config: WandbConfig, name: str, run_id: str, directory: Path) -> None:
        """`run_id` names the run there for good; empty: a new one."""
        self._config = config
        self._name = name
        self._run_id = run_id
        self._directory = directory
        self._run: Any = None

    def take(self, record: Record) -> None:
        """See `Tracker.take`."""
        run = self._run or self._open()
        if record.kind is Kind.RUN:
            run.config.update(dict(record.values), allow_val_change=True)
        elif record.kind is Kind.END:
            run.summary.update(dict(record.values))
        elif record.kind in PREFIXES:
            numbers = {f"{PREFIXES[record.kind]}/{k}": v for k, v in record.numbers.items()}
            run.log({"step": record.step, **numbers})

    def _open(self) -> Any:
        import wandb

        self._directory.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=self._config.project,
            entity=self._config.entity,
            name=self._config.name or self._name or None,
            id=self._run_id or None,
            resume="allow" if self._run_id else None,
            mode=self._config.mode.value,
            dir=str(self._directory),
            # PID 1 already shows the log; a second copy through W&B's pipes would slow it down.
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        return self._run

    def close(self, *, well: bool) -> None:
        """See `Tracker.close`."""
        if self._run is not None:
            self._run.finish(exit_code=0 if well else 1)
