"""One unsharded process in plain torch: what every engine must equal, step for step.

Shares no code with the trainer but the order of the sequences.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.trainer.runs import BATCH, LENGTH
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedModel

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


def train_reference(directory: Path, text: Path, steps: int = 6) -> Reference:
    """Train the model of a directory on a text, byte by byte."""
    tokens = torch.tensor([*text.read_bytes(), END])
    count = (len(tokens) - 1) // LENGTH
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.train()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    losses, norms = [], []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _rate(step)
        numbers = sequence_numbers(step * BATCH, BATCH, count=count, seed=SEED)
        rows = torch.stack([tokens[n * LENGTH : n * LENGTH + LENGTH + 1] for n in numbers])
        logits = model(input_ids=rows[:, :-1]).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Reference(losses, norms, model)
