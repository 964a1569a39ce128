"""The chunked loss against torch's own, value and gradient."""

import pytest
import torch
from torch.nn import functional

from mfsdp_trainer.models import loss as module
from mfsdp_trainer.models.loss import IGNORE, summed_cross_entropy


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 3)


def example(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 11, dtype=dtype) * 4
    labels = torch.randint(0, 11, (2, 5))
    labels[0, 1] = labels[1, 4] = IGNORE
    return logits, labels


def test_equals_torch() -> None:
    logits, labels = example(torch.float32)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found = summed_cross_entropy(ours, labels, 0.125)
    wanted = 0.125 * functional.cross_entropy(
        theirs.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum"
    )
    found.backward()
    wanted.backward()
    assert torch.allclose(found, wanted)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-7)
    with torch.no_grad():
        assert torch.allclose(summed_cross_entropy(logits, labels, 0.125), wanted)


def test_a_scale_is_not_rounded_to_bf16() -> None:
    """1/3000 in bf16 is off by 0.2%: every gradient of a run would be."""
    logits, labels = example(torch.bfloat16)
    ours = logits.clone().requires_grad_()
    summed_cross_entropy(ours, labels, 1 / 3000).backward()
    exact = logits.float().requires_grad_()
    (
        functional.cross_entropy(
            exact.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum"
        )
        / 3000
    ).backward()
    assert ours.grad is not None
    assert exact.grad is not None
    assert torch.equal(ours.grad, exact.grad.bfloat16())


def test_nothing_to_train_on_is_zero_not_nan() -> None:
    logits = torch.randn(1, 4, 7, requires_grad=True)
    found = summed_cross_entropy(logits, torch.full((1, 4), IGNORE))
    found.backward()
    assert float(found.detach()) == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()
