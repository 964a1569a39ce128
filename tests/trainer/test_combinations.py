"""Options together: what each does alone is tested elsewhere, here are drawn ones side by side.

A task says what is learned; a way, how it is computed. A run of a task is stopped in one way and
goes on in another, and every step of both has the numbers of one plain process.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang, Raised
from tests.trainer.megatron.runs import run_on_cpu
from tests.trainer.optim.choices import configured
from tests.trainer.runs import BATCH, SLACK, Result, run_training
from tests.trainer.test_start import FAMILIES
from transformers import AutoConfig, AutoModelForCausalLM

from mfsdp_trainer.config import TrainerConfig

STOP, STEPS = 3, 6
STRATEGIES = ("optim", "optim_grads", "optim_grads_params")
ENGINES = ["ddp", "fsdp2/no_shard", "megatron/no_shard"] + [
    f"{engine}/{strategy}" for engine in ("fsdp2", "megatron") for strategy in STRATEGIES
]
TURNS = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
RAMP = {"start": BATCH, "increment": BATCH, "sequences": 30}


@dataclass(frozen=True)
class Task:
    """What is learned."""

    family: str
    content: str
    packing: str
    training: dict[str, Any]
    lora: dict[str, Any] | None

    @classmethod
    def drawn(cls, chance: random.Random) -> "Task":
        training: dict[str, Any] = {
            "steps": STEPS,
            "optimizer": chance.choice(["adamw", "adamw", "sgd"]),
            "schedule": chance.choice(["cosine", "linear", "wsd", "inverse_sqrt", "constant"]),
            "clipGradNorm": chance.choice([0, 0.5, 1.0]),
        }
        lora = {"rank": 8} if chance.random() < 0.25 else None
        if lora is None and chance.random() < 0.25:
            training["freeze"] = [chance.choice(["embed_tokens|wte", "norm|ln_", r"[.]1[.]"])]
        if chance.random() < 0.3:
            training |= {"globalBatchSize": 2 * BATCH, "batchRamp": RAMP}
        family = chance.choice([*FAMILIES])
        packing = "plain" if family == "gpt2" else chance.choice(["documents", "plain"])
        return cls(family, chance.choice(["text", "chat", "tokens"]), packing, training, lora)


@dataclass(frozen=True)
class Way:
    """How it is computed."""

    engine: str
    ranks: int
    replicas: int
    micro_batches: int
    training: dict[str, Any] = field(default_factory=dict)
    performance: dict[str, Any] = field(default_factory=dict)
    checkpoint: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def drawn(cls, chance: random.Random) -> "Way":
        engine = chance.choice(ENGINES)
        kind, _, strategy = engine.partition("/")
        performance: dict[str, Any] = {}
        if chance.random() < 0.3:
            performance["attention"] = chance.choice(["sdpa", "eager"])
        if kind == "fsdp2":
            performance["prefetchLayers"] = chance.choice([0, 0, 1, 2])
        if kind == "megatron":
            performance["separateGatherGroup"] = chance.random() < 0.3
            performance["doubleBuffer"] = strategy == "optim_grads_params" and chance.random() < 0.3
        ranks = chance.choice([1, 2, 4])
        return cls(
            engine,
            ranks,
            2 if ranks == 4 and strategy in STRATEGIES and chance.random() < 0.5 else 1,
            chance.choice([1, 3]),
            {"recompute": chance.choice(["none", "none", "selective", "full"])},
            performance,
            {"asynchronous": chance.random() < 0.7, "everySteps": chance.choice([2, STOP, 100])},
        )


PLAIN = Way("ddp", 1, 1, 1)


@dataclass(frozen=True)
class Case:
    """A task, the way until it is stopped, and the way on."""

    task: Task
    before: Way
    after: Way

    @classmethod
    def drawn(cls, number: int) -> "Case":
        chance = random.Random(number)
        return cls(Task.drawn(chance), Way.drawn(chance), Way.drawn(chance))


@pytest.fixture
def gang() -> Iterator[Gang]:
    """Fresh processes for each case: three runs, each of a world size of its own."""
    gang = Gang()
    yield gang
    gang.stop()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory with weights of each family."""
    directory = tmp_path_factory.mktemp("models")
    for name, settings in FAMILIES.items():
        torch.manual_seed(11)
        # Ranks draw dropout of their own.
        changes = {f"{place}_pdrop": 0 for place in ("attn", "embd", "resid")}
        settings = settings | (changes if name == "gpt2" else {})
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
        model.save_pretrained(directory / name)
    return {name: directory / name for name in FAMILIES}


def sources(directory: Path, content: str) -> dict[str, Any]:
    """The section `data` for a few hundred small documents."""
    lines = [f"line {n}: {n * n} is the square of {n}, not {n * n + n}.\n" for n in range(300)]
    records: dict[str, Any] = {
        "text": lambda line: {"text": line},
        "tokens": lambda line: {"input_ids": list(line.encode())},
        "chat": lambda line: {
            "messages": [
                {"role": "user", "content": line[:10]},
                {"role": "assistant", "content": line[10:]},
            ]
        },
    }
    file = directory / f"{content}.jsonl"
    file.write_text("".join(f"{json.dumps(records[content](line))}\n" for line in lines))
    data: dict[str, Any] = {"sources": [{"path": str(file), "format": "jsonl", "content": content}]}
    if content == "chat":
        (directory / "turns.jinja").write_text(TURNS, encoding="utf-8")
        data["tokenizer"] = {"chatTemplate": str(directory / "turns.jinja")}
    return data


def configuration_of(task: Task, way: Way, model: Path, text: Path, path: Path) -> TrainerConfig:
    config = configured(
        way.engine,
        text,
        path,
        ranks=way.ranks,
        micro_batches=way.micro_batches,
        model={"path": str(model), **({"lora": task.lora} if task.lora else {})},
        data={"packing": task.packing, **sources(text.parent, task.content)},
        training={**task.training, **way.training},
        checkpoint={"path": str(path), "export": False, **way.checkpoint},
    )
    update = {"data_parallel_replicas": way.replicas, "performance": way.performance}
    changed = config.model_copy(update=update)
    # As it is written and read on its way to a pod: every rule is asked.
    return TrainerConfig.model_validate(changed.model_dump(mode="json", warnings=False))


def ran(gang: Gang, config: TrainerConfig, stop_after: int | None = None) -> Result:
    run = run_on_cpu if config.use_megatron_fsdp else run_training
    answers = gang.run(config.world_size, run, config, stop_after)
    for rank, answer in enumerate(answers):
        assert not isinstance(answer, Raised), f"rank {rank}: {answer.trace}"
    first: Result = answers[0]
    return first


def differences(
    found: list[tuple[int, float, float]], wanted: list[tuple[int, float, float]]
) -> Iterator[str]:
    for (step, loss, norm), (number, other_loss, other_norm) in zip(found, wanted, strict=True):
        if (
            step != number
            or loss != pytest.approx(other_loss, abs=SLACK * 2e-4)
            or norm != pytest.approx(other_norm, rel=SLACK * 5e-3, abs=SLACK * 1e-3)
        ):
            yield f"step {step}: {loss:.6f}, {norm:.6f} for {other_loss:.6f}, {other_norm:.6f}"


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[] if n < 3 else pytest.mark.soak) for n in range(60)]
)
def test_every_step_is_that_of_a_plain_process(
    gang: Gang, models: dict[str, Path], tmp_path: Path, number: int
) -> None:
    case = Case.drawn(number)
    model, text = models[case.task.family], tmp_path / "text"
    plain = configuration_of(case.task, PLAIN, model, text, tmp_path / "plain")
    before = configuration_of(case.task, case.before, model, text, tmp_path / "run")
    after = configuration_of(case.task, case.after, model, text, tmp_path / "run")
    wanted = ran(gang, plain)
    assert wanted.error is None, case.task
    stopped = ran(gang, before, STOP)
    assert stopped.error is not None
    assert stopped.error.reason == "Preempted", (case.before, stopped.error)
    ended = ran(gang, after)
    assert ended.error is None, (case.after, ended.error)
    assert ended.resumed_from == STOP
    assert not list(differences(stopped.steps + ended.steps, wanted.steps)), case
