"""What a job resolves to: the defaults that depend on other fields."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api.refusals import base

from mfsdp_operator.api.job import parse_job, parse_meta, parse_spec, parse_status
from mfsdp_operator.api.problems import InvalidSpecError
from mfsdp_operator.api.resolve import resolve
from mfsdp_trainer.config import TrainerConfig

SPEC = base()["spec"]


def spec(**changes: Any) -> dict[str, Any]:
    return {**SPEC, **changes}


@pytest.mark.parametrize(
    ("changes", "procs", "world", "gpus"),
    [
        ({}, 1, 2, 0),
        ({"gpusPerNode": 2}, 2, 4, 4),
        ({"gpusPerNode": 2, "procsPerNode": 2}, 2, 4, 4),
        ({"procsPerNode": 2}, 2, 4, 0),
    ],
)
def test_processes_follow_gpus(changes: dict[str, int], procs: int, world: int, gpus: int) -> None:
    resolved = resolve(parse_spec(spec(**changes)))
    assert (resolved.procs_per_node, resolved.world_size, resolved.gpus) == (procs, world, gpus)
    assert resolved.trainer is not None
    assert resolved.trainer.procs_per_node == procs


def test_one_gpu_a_pod_is_the_default() -> None:
    without = {name: value for name, value in SPEC.items() if name != "gpusPerNode"}
    assert resolve(parse_spec(without)).gpus == 2


@pytest.mark.parametrize(
    ("changes", "engine", "strategy", "shard_size"),
    [
        ({}, "torch_fsdp2", "optim_grads_params", 2),
        ({"dataParallelReplicas": 2, "nodes": 4}, "torch_fsdp2", "optim_grads_params", 2),
        ({"dataParallelShardingStrategy": "optim"}, "torch_fsdp2", "optim", 2),
        ({"useTorchFSDP2": False}, "ddp", "no_shard", 1),
        (
            {"useTorchFSDP2": False, "useMegatronFSDP": True, "gpusPerNode": 1},
            "megatron_fsdp",
            "optim_grads_params",
            2,
        ),
    ],
)
def test_strategy_follows_the_engine_and_is_written_out(
    changes: dict[str, Any], engine: str, strategy: str, shard_size: int
) -> None:
    resolved = resolve(parse_spec(spec(**changes)))
    sharding = resolved.sharding
    assert (sharding.engine, sharding.strategy, sharding.shard_size) == (
        engine,
        strategy,
        shard_size,
    )
    assert resolved.trainer is not None
    assert resolved.trainer.data_parallel_sharding_strategy == strategy
    assert resolved.trainer.resolve() == sharding


def test_a_program_of_ones_own_needs_no_trainer_configuration() -> None:
    template = {"spec": {"containers": [{"name": "trainer", "command": ["megatron", "sft"]}]}}
    resolved = resolve(parse_spec({"template": template, "nodes": 2, "gpusPerNode": 8}))
    assert resolved.own_program
    assert resolved.trainer is None
    assert resolved.sharding.world_size == 16


def test_all_problems_are_told_at_once() -> None:
    wrong = spec(model=None, checkpoint={"path": "here"}, logging={"port": 29500})
    with pytest.raises(InvalidSpecError) as caught:
        resolve(parse_spec(wrong))
    fields = [line.split(":")[0] for line in caught.value.problems]
    assert fields == ["spec.model", "spec.checkpoint.path", "spec.logging.port"]


def test_a_wrong_spec_still_has_metadata_and_status() -> None:
    manifest = base()
    manifest["spec"] = {"nodes": "two"}
    manifest["metadata"] |= {"uid": "u", "generation": 3, "deletionTimestamp": "now"}
    meta = parse_meta(manifest)
    assert (meta.name, meta.uid, meta.generation, meta.deleting) == ("case", "u", 3, True)
    assert parse_status({"phase": "Failed", "fieldOfANewerOperator": 1}).phase == "Failed"
    with pytest.raises(InvalidSpecError, match=r"spec.nodes: must be a whole number; got 'two'"):
        parse_job(manifest)


@settings(deadline=None)
@given(
    nodes=st.integers(1, 64),
    procs=st.integers(1, 8),
    micro=st.integers(1, 8),
    micro_batches=st.integers(1, 16),
    off=st.integers(0, 3),
)
def test_batch_arithmetic(nodes: int, procs: int, micro: int, micro_batches: int, off: int) -> None:
    step = nodes * procs * micro
    training = {"steps": 1, "globalBatchSize": step * micro_batches + off, "microBatchSize": micro}
    job = parse_spec(spec(nodes=nodes, procsPerNode=procs, training=training))
    if off % step:
        with pytest.raises(InvalidSpecError, match="globalBatchSize"):
            resolve(job)
        return
    resolved = resolve(job)
    assert resolved.sharding.micro_batches == micro_batches + off // step
    assert isinstance(resolved.trainer, TrainerConfig)


@pytest.mark.parametrize("field", ["model", "template"])
def test_what_nests_beyond_all_measure_is_a_problem_not_a_fault(field: str) -> None:
    """The API server takes thousands of levels, where Python's recursion would end."""
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    value = {"model": {"config": {"model_type": "llama", "x": deep}}, "template": {"spec": deep}}
    with pytest.raises(InvalidSpecError, match="spec: must not nest deeper than 64 levels"):
        parse_spec(spec(**{field: value[field]}))
