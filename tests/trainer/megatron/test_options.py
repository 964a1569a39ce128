"""Options of Megatron FSDP: what they switch on in the package, and the ones that nobody can."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.trainer.gang import ON_GPU

from mfsdp_trainer.config import PerformanceConfig, ShardingStrategy

CPU = torch.device("cpu")
SHARDED = ShardingStrategy.OPTIM_GRADS_PARAMS


def settings(strategy: ShardingStrategy, device: torch.device = CPU, **performance: Any) -> Any:
    from mfsdp_trainer.engines.megatron import wrap

    return wrap._settings(strategy, 1000, PerformanceConfig(**performance), device)


@pytest.mark.parametrize("strategy", ShardingStrategy)
def test_what_computes_wrong_numbers_is_out_of_reach(strategy: ShardingStrategy) -> None:
    found = settings(strategy, nccl_user_buffers=True, double_buffer=True)
    # `optim` over copies forgets to average; without overlap `optim` reduces twice.
    assert found.outer_dp_sharding_strategy == "no_shard"
    assert found.overlap_grad_reduce
    assert found.overlap_param_gather
    # It knows no group of experts.
    assert not found.average_in_collective


def test_user_buffers_bring_what_they_need() -> None:
    found = settings(SHARDED, nccl_user_buffers=True)
    assert found.nccl_ub
    assert found.fsdp_double_buffer
    assert found.fsdp_manual_registration
    assert not settings(SHARDED).fsdp_double_buffer
    assert settings(SHARDED, double_buffer=True).fsdp_double_buffer


def test_over_one_rank_there_is_nothing_to_buffer() -> None:
    """Nothing is sharded then, and the package fails where it finds no units."""
    found = settings(ShardingStrategy.NO_SHARD, nccl_user_buffers=True, double_buffer=True)
    assert not found.fsdp_double_buffer
    assert not found.nccl_ub


def test_the_reduction_divides_as_well_on_gpus_alone() -> None:
    assert settings(SHARDED, torch.device("cuda", 0)).gradient_reduce_div_fusion
    assert not settings(SHARDED).gradient_reduce_div_fusion


def test_buffers_are_registered_once_and_only_where_asked_for() -> None:
    from mfsdp_trainer.engines.megatron.buffers import register

    calls = []

    class Buffers:
        already_registered = False

        def manual_buffer_registration(self) -> None:
            calls.append("registered")
            self.already_registered = True

    for asked in (False, True):
        config = SimpleNamespace(fsdp_manual_registration=asked)
        wrapped = SimpleNamespace(ddp_config=config, param_and_grad_buffer=Buffers())
        register(wrapped)
        register(wrapped)
    assert calls == ["registered"]


def test_torchs_allocator_takes_the_place_of_one_to_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from megatron.core import nccl_allocator

    from mfsdp_trainer.engines.megatron import buffers

    backend = SimpleNamespace(mem_allocator=object())
    world = SimpleNamespace(_get_backend=lambda device: backend)
    monkeypatch.setattr(buffers.dist, "group", SimpleNamespace(WORLD=world))
    monkeypatch.setattr(nccl_allocator, "_allocator", None)
    buffers.use_torchs_allocator(CPU)
    nccl_allocator._build_nccl_allocator()
    assert nccl_allocator._allocator is backend.mem_allocator


pytestmark = pytest.mark.skipif(ON_GPU, reason="about settings, not devices")
