"""The sums of `mfsdp plan`, against closed forms; tests/trainer/plan holds them against runs."""

import pytest

from mfsdp_trainer.config import Engine, ShardingStrategy, TrainerConfig
from mfsdp_trainer.config.training import Precision, Recompute
from mfsdp_trainer.plan import gpus
from mfsdp_trainer.plan.choices import Choice, choices
from mfsdp_trainer.plan.facts import (
    Compute,
    ModelFacts,
    TensorFacts,
    UnitFacts,
    UnitKind,
    WorkCase,
    WorkFacts,
)
from mfsdp_trainer.plan.memory import Job, memory
from mfsdp_trainer.plan.report import Report, report
from mfsdp_trainer.plan.traffic import traffic

GIB = 1 << 30
LAYER, END, NORM = 1024 * 1024, 4096 * 1024, 1024
TOTAL = 400 * LAYER + 2 * END + NORM
ONCE_LESS = 2 - END / TOTAL


def unit(kind: UnitKind, count: int, rows: int, *, trained: bool = True) -> UnitFacts:
    tensor = TensorFacts(rows=rows, row=1024, count=1, trained=trained)
    return UnitFacts(kind=kind, count=count, tensors=(tensor,))


def facts(
    *,
    activations: int = 0,
    peak: int = 0,
    trained: bool = True,
    micro_batch: int = 1,
    recomputing: float = 1,
) -> ModelFacts:
    """Four hundred layers of a million numbers between two ends of four million.

    `recomputing` is what part of the work is left with recompute full.
    """
    parts = {Recompute.NONE: 1.0, Recompute.SELECTIVE: 1.0, Recompute.FULL: recomputing}
    return ModelFacts(
        model_type="llama",
        tied=False,
        units=(
            unit(UnitKind.END, 1, 4096),
            unit(UnitKind.LAYER, 400, 1024, trained=trained),
            unit(UnitKind.END, 1, 4096),
            unit(UnitKind.ROOT, 1, 1),
        ),
        work=tuple(
            WorkCase(
                micro_batch=size,
                compute=compute,
                recompute=recompute,
                work=WorkFacts(
                    activations=round(activations * size * part),
                    weight_copies=0,
                    peak=round(peak * size * part),
                ),
            )
            for size in {micro_batch, 1}
            for compute in Compute
            for recompute, part in parts.items()
        ),
    )


def job(precision: str, *, micro_batches: int = 1) -> Job:
    return Job(precision=Precision(precision), micro_batch=1, micro_batches=micro_batches)


def choice(engine: str, strategy: str, world: int = 8, replicas: int = 1) -> Choice:
    return Choice(
        engine=Engine(engine),
        strategy=ShardingStrategy(strategy),
        world=world,
        replicas=replicas,
    )


@pytest.mark.parametrize(
    ("engine", "strategy", "fp32", "bf16"),
    [
        ("ddp", "no_shard", 16, 16),
        ("torch_fsdp2", "no_shard", 16, 16),
        ("torch_fsdp2", "optim", 16 / 8, 16 / 8),
        ("torch_fsdp2", "optim_grads", 16 / 8, 16 / 8),
        ("torch_fsdp2", "optim_grads_params", 16 / 8, 16 / 8),
        ("megatron_fsdp", "no_shard", 16, 18),
        ("megatron_fsdp", "optim", 8 + 8 / 8, 6 + 12 / 8),
        ("megatron_fsdp", "optim_grads", 4 + 12 / 8, 2 + 16 / 8),
        ("megatron_fsdp", "optim_grads_params", 16 / 8, 18 / 8),
    ],
)
def test_states_are_the_known_bytes_a_parameter(
    engine: str, strategy: str, fp32: float, bf16: float
) -> None:
    for precision, wanted in (("fp32", fp32), ("bf16", bf16)):
        found = memory(facts(), job(precision), choice(engine, strategy))
        assert found.states / TOTAL == pytest.approx(wanted, rel=1e-3)


def test_copies_halve_the_shards() -> None:
    for strategy in ("optim_grads", "optim_grads_params"):
        whole = memory(facts(), job("fp32"), choice("torch_fsdp2", strategy))
        copied = memory(facts(), job("fp32"), choice("torch_fsdp2", strategy, replicas=2))
        assert copied.states == pytest.approx(2 * whole.states, rel=1e-3)


def test_a_dimension_that_does_not_divide_is_rounded_up() -> None:
    odd = facts().model_copy(update={"units": (unit(UnitKind.ROOT, 1, 9),)})
    found = memory(odd, job("fp32"), choice("torch_fsdp2", "optim_grads_params"))
    assert found.parameters == 4 * 2 * 1024


def test_whole_gradients_are_counted_where_micro_batches_add_them_up() -> None:
    for engine, strategy, once, several in (
        ("ddp", "no_shard", 4, 4),
        ("torch_fsdp2", "optim", 4 / 8, 4),
        ("torch_fsdp2", "optim_grads", 4 / 8, 4 / 8),
        ("megatron_fsdp", "optim", 4, 4),
    ):
        for micro_batches, wanted in ((1, once), (3, several)):
            found = memory(
                facts(), job("bf16", micro_batches=micro_batches), choice(engine, strategy)
            )
            held = max(found.gradients, found.carried)
            assert held / TOTAL == pytest.approx(wanted, rel=1e-3), engine


def test_frozen_weights_have_neither_gradients_nor_moments() -> None:
    trained = 2 * END + NORM
    for engine in ("ddp", "torch_fsdp2", "megatron_fsdp"):
        found = memory(facts(trained=False), job("fp32"), choice(engine, "no_shard"))
        assert found.gradients == 4 * trained
        assert found.optimizer == 8 * trained
        assert found.parameters == 4 * TOTAL


@pytest.mark.parametrize("engine", ["ddp", "torch_fsdp2", "megatron_fsdp"])
def test_frozen_weights_have_no_masters_beside_what_computes(engine: str) -> None:
    trained = 2 * END + NORM
    found = memory(facts(trained=False), job("bf16"), choice(engine, "no_shard"))
    copies = 2 * trained if engine == "megatron_fsdp" else 0
    assert found.parameters == 2 * (TOTAL - trained) + 4 * trained + copies


def test_sgd_keeps_one_moment_or_none() -> None:
    for training, wanted in (({"optimizer": "sgd"}, 1), ({"optimizer": "sgd", "momentum": 0}, 0)):
        values = {"steps": 10, "globalBatchSize": 96, "microBatchSize": 4, **training}
        found = planned(GIB, facts(micro_batch=4), training=values)
        assert found.chosen.memory.optimizer / TOTAL == pytest.approx(4 * wanted / 8, rel=1e-3)


def test_activations_leave_room_for_gradients_as_they_go() -> None:
    """Under FSDP2 gradients are there at the end, activations at the start of a backward pass."""
    large = facts(activations=100 * TOTAL, peak=100 * TOTAL)
    once = memory(large, job("fp32"), choice("torch_fsdp2", "no_shard"))
    several = memory(large, job("fp32", micro_batches=2), choice("torch_fsdp2", "no_shard"))
    assert several.peak - once.peak == several.carried == 4 * TOTAL


@pytest.mark.parametrize(
    ("engine", "strategy", "replicas", "gather", "scatter", "reduce"),
    [
        # bytes a parameter at 8 ranks, bf16, 3 micro-batches
        ("ddp", "no_shard", 1, 0, 0, 2 * 4 * 7 / 8),
        ("torch_fsdp2", "no_shard", 1, 0, 0, 2 * 4 * 7 / 8),
        ("megatron_fsdp", "no_shard", 1, 0, 0, 2 * 4 * 7 / 8),
        ("torch_fsdp2", "optim", 1, 2 * 7 / 8, 4 * 7 / 8, 0),
        ("megatron_fsdp", "optim", 1, 2 * 7 / 8, 4 * 7 / 8, 0),
        ("torch_fsdp2", "optim_grads", 1, 3 * 2 * 7 / 8, 3 * 4 * 7 / 8, 0),
        ("megatron_fsdp", "optim_grads", 1, 2 * 7 / 8, 3 * 4 * 7 / 8, 0),
        # all of it twice, but the head, which is kept from forward to backward
        ("torch_fsdp2", "optim_grads_params", 1, 3 * 2 * ONCE_LESS * 7 / 8, 3 * 4 * 7 / 8, 0),
        ("megatron_fsdp", "optim_grads_params", 1, 3 * 2 * 2 * 7 / 8, 3 * 4 * 7 / 8, 0),
        # shards of four ranks, two copies: they agree on shards, once
        ("torch_fsdp2", "optim_grads_params", 2, 3 * 2 * ONCE_LESS * 3 / 4, 3 * 4 * 3 / 4, 4 / 4),
        # Megatron FSDP reduces what it could leave out
        ("megatron_fsdp", "optim", 2, 2 * 3 / 4, 4 * 3 / 4, 4),
    ],
)
def test_traffic_of_a_step(
    engine: str, strategy: str, replicas: int, gather: float, scatter: float, reduce: float
) -> None:
    sent = traffic(
        facts(), job("bf16", micro_batches=3), choice(engine, strategy, replicas=replicas)
    )
    wanted = [pytest.approx(part, rel=1e-3) for part in (gather, scatter, reduce)]
    found = [part / TOTAL for part in (sent.all_gather, sent.reduce_scatter, sent.all_reduce)]
    assert found == wanted


def test_every_engine_and_strategy_is_looked_at_once() -> None:
    found = list(choices(8, (1, 2, 3, 8)))
    assert len(set(found)) == len(found) == 1 + 2 * (1 + 3 * 2)
    assert {c.replicas for c in found} == {1, 2}


def config(**changes: object) -> TrainerConfig:
    values: dict[str, object] = {
        "useTorchFSDP2": True,
        "nodes": 2,
        "procsPerNode": 4,
        "gpusPerNode": 4,
        "model": {"config": {"model_type": "llama"}},
        "data": {"sources": [{"path": "/text"}], "sequenceLength": 100},
        "training": {"steps": 10, "globalBatchSize": 96, "microBatchSize": 4},
    }
    return TrainerConfig.model_validate(values | changes, by_alias=True, by_name=False)


def planned(memory: float, found: ModelFacts, **changes: object) -> Report:
    """A plan for a GPU of so many bytes that tensors can have."""
    size = round(memory / 0.95) + 2 * GIB
    return report(config(**changes), found, gpus.of_memory(str(size)))


def test_a_step_is_the_product_of_its_parts() -> None:
    batch = planned(GIB, facts(micro_batch=4)).batch
    assert (batch.micro, batch.ranks, batch.accumulation) == (4, 8, 3)
    assert (batch.sequences, batch.tokens) == (96, 9600)


def test_the_least_sharded_that_fits_is_recommended_of_the_jobs_own_engine() -> None:
    # Three micro-batches: no_shard and optim need whole gradients, optim_grads whole weights.
    sizes = {
        "no_shard": 20 * TOTAL,
        "optim_grads": 4.5 * TOTAL,
        "optim_grads_params": 3.5 * TOTAL,
    }
    for strategy, size in sizes.items():
        found = planned(size, facts(micro_batch=4))
        assert found.least is not None
        assert found.least.choice.engine is Engine.TORCH_FSDP2
        assert found.least.choice.strategy == strategy
        assert found.changes == ()


def test_two_copies_are_preferred_where_they_fit() -> None:
    found = planned(6.5 * TOTAL, facts(micro_batch=4))
    assert found.least is not None
    assert found.least.choice.replicas == 2


def test_where_nothing_fits_a_change_is_offered_that_does() -> None:
    heavy = facts(micro_batch=4, activations=TOTAL, peak=TOTAL)
    found = planned(5 * TOTAL, heavy)
    assert found.least is None
    (change,) = found.changes
    assert change.fields == {"training.microBatchSize": 1}
    assert change.row.fits


@pytest.mark.parametrize(
    ("micro_batch", "recomputing", "offered"),
    [
        # What one change does alone is offered alone; both together only where neither does.
        (1, 0.5, [{"training.recompute": "full"}]),
        (4, 0.125, [{"training.microBatchSize": 1}, {"training.recompute": "full"}]),
        (4, 0.5, [{"training.microBatchSize": 1}]),
        (16, 0.125, [{"training.microBatchSize": 1, "training.recompute": "full"}]),
    ],
)
def test_recompute_is_offered_before_more_nodes(
    micro_batch: int, recomputing: float, offered: list[dict[str, object]]
) -> None:
    work = {1: 4, 4: 2, 16: 4}[micro_batch] * TOTAL
    heavy = facts(micro_batch=micro_batch, activations=work, peak=work, recomputing=recomputing)
    training = {"steps": 10, "globalBatchSize": 384, "microBatchSize": micro_batch}
    found = planned(5.5 * TOTAL, heavy, training=training)
    assert found.least is None
    assert [change.fields for change in found.changes] == offered
    assert all(change.row.fits for change in found.changes)
    assert {change.row.choice for change in found.changes} == {found.chosen.choice}


def test_a_job_that_recomputes_is_not_told_to() -> None:
    heavy = facts(micro_batch=4, activations=TOTAL, peak=TOTAL)
    training = {"steps": 10, "globalBatchSize": 96, "microBatchSize": 4, "recompute": "full"}
    found = planned(5 * TOTAL, heavy, training=training)
    assert [change.fields for change in found.changes] == [{"training.microBatchSize": 1}]
    assert found.recomputed == found.chosen


def test_more_nodes_are_offered_where_that_is_what_it_takes() -> None:
    found = planned(1.5 * TOTAL, facts(micro_batch=4))
    assert found.least is None
    (change,) = found.changes
    assert change.fields == {"nodes": 4, "training.microBatchSize": 1}


def test_where_nothing_helps_nothing_is_offered() -> None:
    hopeless = facts(micro_batch=4, activations=100 * TOTAL, peak=100 * TOTAL)
    found = planned(10 * TOTAL, hopeless)
    assert (found.least, found.changes) == (None, ())


def test_unknown_activations_are_not_counted_but_said() -> None:
    blind = facts().model_copy(update={"work": (), "untraced": "it looks at values"})
    found = planned(20 * TOTAL, blind)
    assert found.untraced == "it looks at values"
    assert all(row.memory.work is None for row in found.rows)


def test_gpus_by_name_and_by_size() -> None:
    assert gpus.named("H100-80GB").memory == 81_559 << 20
    assert gpus.of_memory("80Gi").memory == 80 * GIB
    assert gpus.of_memory("80000M").memory == 80 * 10**9
    assert 70 * GIB < gpus.of_memory("80Gi").usable < 80 * GIB
    with pytest.raises(ValueError, match=r"is none of a10-24gb, .*--memory"):
        gpus.named("h1000")
    with pytest.raises(ValueError, match="is no quantity of memory"):
        gpus.of_memory("80 GB")
