"""One unsharded process in plain torch: what every engine must equal, step for step.

Shares no code with the trainer but the order of the sequences.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang
from tests.trainer.runs import BATCH, LENGTH, SLACK, Result
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedModel

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.data.order import sequence_numbers

END = 256
SEED = 1234


@dataclass
class Reference:
    """Losses and norms of each step, and the model after the last."""

    losses: list[float]
    norms: list[float]
    model: PreTrainedModel


def _rate(step: int) -> float:
    """Two steps of warmup to 1e-2, then a cosine to 1e-3 at the sixth."""
    if step < 2:
        return 1e-2 * (step + 1) / 2
    return 1e-3 + 0.5 * 9e-3 * (1 + math.cos(math.pi * (step - 2) / 3))


def adamw(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer of `configuration`."""
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def train_reference(
    directory: Path,
    text: Path,
    sizes: Sequence[int] = (BATCH,) * 6,
    *,
    optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] = adamw,
    prepare: Callable[[PreTrainedModel], object] = lambda model: None,
) -> Reference:
    """Train the model of a directory on a text, byte by byte, in global batches of those sizes.

    `prepare` may freeze or add parameters.
    """
    tokens = torch.tensor([*text.read_bytes(), END])
    count = (len(tokens) - 1) // LENGTH
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    prepare(model)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() >= 2]
    vectors = [p for p in trained if p.dim() < 2]
    updates = optimizer(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    )
    losses, norms = [], []
    for step, size in enumerate(sizes):
        for group in updates.param_groups:
            group["lr"] = _rate(step)
        numbers = sequence_numbers(sum(sizes[:step]), size, count=count, seed=SEED)
        rows = torch.stack([tokens[n * LENGTH : n * LENGTH + LENGTH + 1] for n in numbers])
        logits = model(input_ids=rows[:, :-1]).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        updates.step()
        updates.zero_grad()
        losses.append(loss.item())
    return Reference(losses, norms, model)


def assert_equal_to(
    run: Callable[..., Result],
    gang: Gang,
    config: TrainerConfig,
    reference: Reference,
    *,
    tolerance: float = 1e-5,
) -> None:
    """A run tells the reference's numbers, at every step."""
    results = gang.results(config.world_size, run, config)
    assert [result.error for result in results] == [None] * config.world_size
    steps, losses, norms = zip(*results[0].steps, strict=True)
    assert steps == (1, 2, 3, 4, 5, 6)
    assert losses == pytest.approx(reference.losses, abs=SLACK * tolerance)
    assert norms == pytest.approx(reference.norms, abs=10 * SLACK * tolerance)
