"""Megatron FSDP needs CUDA: who has none is told so, and the tests' shim is of no use elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.trainer.megatron.cpu_shim import cuda_on_cpu
from tests.trainer.megatron.runs import megatron
from tests.trainer.runs import Recorder

from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.run import run


def test_is_refused_without_gpus(text_file: Path, tmp_path: Path) -> None:
    config = megatron(text_file, tmp_path, "optim_grads_params")
    with pytest.raises(ConfigError) as caught:
        run(config, Recorder(rank=0))
    assert str(caught.value) == (
        "useMegatronFSDP needs GPUs: Megatron FSDP runs on CUDA only; use useTorchFSDP2 on the CPU"
    )


def test_other_engines_do_not_pay_for_its_import() -> None:
    code = "import sys, mfsdp_trainer.run; print('megatron' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "False\n"


def test_the_shim_refuses_a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RuntimeError, match="test on the GPU instead"), cuda_on_cpu():
        pass


def test_the_shim_leaves_nothing_behind() -> None:
    before = (torch.cuda.Stream, torch.cuda.current_device, torch.Tensor.cuda)
    with cuda_on_cpu():
        assert torch.cuda.current_device() == 0
    assert (torch.cuda.Stream, torch.cuda.current_device, torch.Tensor.cuda) == before
