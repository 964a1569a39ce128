"""The switch for deterministic algorithms is thrown before anything starts that reads it."""

import os

import pytest
import torch

from mfsdp_trainer import run as runs
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.reporting import Reporter

NAMES = ("CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO", "FLASH_ATTENTION_DETERMINISTIC")


class _StartedError(Exception):
    """Stands for a world that begins."""


@pytest.mark.parametrize("deterministic", [True, False])
def test_before_the_world_starts(monkeypatch: pytest.MonkeyPatch, deterministic: bool) -> None:
    config = TrainerConfig.model_validate(
        {
            "model": {"config": {"model_type": "llama"}},
            "data": {"sources": [{"path": "/data"}]},
            "training": {"steps": 1, "globalBatchSize": 1, "deterministic": deterministic},
        }
    )
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    seen: dict[str, object] = {}

    def start(*, gpu: bool) -> None:
        seen["algorithms"] = torch.are_deterministic_algorithms_enabled()
        seen.update({name: os.environ.get(name) for name in NAMES})
        raise _StartedError

    monkeypatch.setattr(runs.World, "start", start)
    try:
        with pytest.raises(_StartedError):
            runs.run(config, Reporter(None, 0))
    finally:
        torch.use_deterministic_algorithms(False)
        for name in NAMES:
            os.environ.pop(name, None)
    workspace, flash = (":4096:8", "1") if deterministic else (None, None)
    assert seen == {
        "algorithms": deterministic,
        "CUBLAS_WORKSPACE_CONFIG": workspace,
        "NCCL_ALGO": "Ring",
        "FLASH_ATTENTION_DETERMINISTIC": flash,
    }
