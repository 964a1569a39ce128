"""The chunked loss against torch's own, value and gradients."""

import pytest
import torch
from tests.trainer.memory import Live
from torch import Tensor
from torch.nn import functional

from mfsdp_trainer.models import loss as module
from mfsdp_trainer.models.loss import IGNORE, PLAIN, Tail, head_loss, logits_loss

VOCABULARY = 11
TAILS = [PLAIN, Tail(0.25), Tail(1.0, 3.0), Tail(2.0, 3.0)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 3 * VOCABULARY)


def example(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Hidden states, weight, bias of a head, and labels."""
    torch.manual_seed(0)
    labels = torch.randint(0, VOCABULARY, (2, 5))
    labels[0, 1] = labels[1, 4] = IGNORE
    parts = [torch.randn(2, 5, 6), torch.randn(VOCABULARY, 6), torch.randn(VOCABULARY)]
    return [*(part.to(dtype).requires_grad_() for part in parts), labels]


def whole(hidden: Tensor, weight: Tensor, bias: Tensor | None, tail: Tail = PLAIN) -> Tensor:
    logits = tail.scale * functional.linear(hidden, weight, bias)
    return logits if tail.cap is None else tail.cap * torch.tanh(logits / tail.cap)


def by_torch(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum"
    )


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("biased", [True, False])
def test_head_and_loss_in_one_equal_torch(tail: Tail, biased: bool) -> None:
    *parts, labels = example()
    parts = parts if biased else parts[:2]
    hidden, weight, *bias = parts
    bias_or_none = bias[0] if biased else None
    wanted = 0.125 * by_torch(whole(hidden, weight, bias_or_none, tail), labels)
    slopes = torch.autograd.grad(wanted, parts)
    found = head_loss(hidden, weight, bias_or_none, labels, 0.125, tail)
    found.backward()
    assert torch.allclose(found, wanted)
    for part, slope in zip(parts, slopes, strict=True):
        assert part.grad is not None
        assert torch.allclose(part.grad, slope, atol=1e-6)
    with torch.no_grad():
        again = head_loss(hidden, weight, bias_or_none, labels, 0.125, tail)
    assert torch.allclose(again, wanted)


def test_loss_of_whole_logits_equals_torch() -> None:
    hidden, weight, bias, labels = example()
    logits = whole(hidden, weight, bias).detach().requires_grad_()
    kept = logits.detach().clone()
    wanted = 0.125 * by_torch(logits, labels)
    (slope,) = torch.autograd.grad(wanted, logits)
    found = logits_loss(logits, labels, 0.125)
    found.backward()
    assert torch.allclose(found, wanted)
    assert logits.grad is not None
    assert torch.allclose(logits.grad, slope, atol=1e-7)
    assert torch.equal(logits, kept), "made its gradient in the logits themselves"


def test_a_scale_is_not_rounded_to_bf16() -> None:
    """1/3000 in bf16 is off by 0.2%: every gradient of a run would be."""
    hidden, weight, bias, labels = example(torch.bfloat16)
    logits = whole(hidden, weight, bias).detach()
    ours = logits.clone().requires_grad_()
    logits_loss(ours, labels, 1 / 3000).backward()
    exact = logits.float().requires_grad_()
    (by_torch(exact, labels) / 3000).backward()
    assert ours.grad is not None
    assert exact.grad is not None
    # Softmax in place rounds otherwise than torch's: one unit in the last place of bf16 at most.
    assert torch.allclose(ours.grad.float(), exact.grad, rtol=2**-8, atol=0)
    assert float((ours.grad.float() / exact.grad).nanmean()) == pytest.approx(1, abs=5e-4)


def test_nor_is_it_where_head_and_loss_are_one() -> None:
    """Each gradient is rounded once, here to more and there to less: no factor is common to all."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(1, 200, 16), torch.randn(VOCABULARY, 16)
    parts = [part.bfloat16().requires_grad_() for part in (hidden, weight)]
    labels = torch.randint(0, VOCABULARY, (1, 200))
    found = head_loss(parts[0], parts[1], None, labels, 1 / 3000)
    found.backward()
    wide = [part.detach().float().requires_grad_() for part in parts]
    (by_torch(whole(wide[0], wide[1], None), labels) / 3000).backward()
    for part, exact in zip(parts, wide, strict=True):
        assert part.grad is not None
        assert exact.grad is not None
        factor = (part.grad.float() * exact.grad).sum() / exact.grad.square().sum()
        assert float(factor) == pytest.approx(1, abs=5e-4)


def test_the_loss_of_bf16_states_has_more_digits_than_they() -> None:
    hidden, weight, _, labels = (part.detach() for part in example(torch.bfloat16))
    found = head_loss(hidden, weight, None, labels)
    assert found.dtype is torch.float32
    assert float(found) == pytest.approx(float(by_torch((hidden @ weight.T).float(), labels)))


def test_bf16_gradients_of_the_head_are_added_up_in_fp32() -> None:
    """Thousands of equal shares: in bf16 the sum stops growing at 256 of them."""
    rows = 3000
    hidden = torch.ones(1, rows, 2, dtype=torch.bfloat16)
    weight = torch.zeros(VOCABULARY, 2, dtype=torch.bfloat16, requires_grad=True)
    head_loss(hidden, weight, None, torch.zeros(1, rows, dtype=torch.long)).backward()
    assert weight.grad is not None
    assert weight.grad.dtype is torch.bfloat16
    wanted = torch.full((VOCABULARY, 2), rows / VOCABULARY)
    wanted[0] -= rows
    assert torch.allclose(weight.grad.float(), wanted, rtol=2**-7)


def test_autocast_computes_in_bf16_and_keeps_gradients_of_fp32_weights_wide() -> None:
    hidden, weight, _, labels = example()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = head_loss(hidden, weight, None, labels)
    found.backward()
    assert found.dtype is torch.float32
    assert weight.grad is not None
    assert weight.grad.dtype is torch.float32
    exact = by_torch(whole(hidden, weight, None), labels)
    assert float(found.detach()) != float(exact.detach())
    assert float(found.detach()) == pytest.approx(float(exact.detach()), rel=1e-2)
    # Sums of bf16 shares that were rounded once more would be bf16 numbers.
    assert not torch.equal(weight.grad, weight.grad.bfloat16().float())


def test_what_is_frozen_costs_no_gradient() -> None:
    hidden, weight, bias, labels = example()
    weight.requires_grad_(False)
    head_loss(hidden, weight, bias, labels).backward()
    assert hidden.grad is not None
    assert bias.grad is not None
    assert weight.grad is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_positions_that_are_not_trained_on_do_not_count_whatever_is_there(bad: float) -> None:
    hidden, weight, bias, labels = (part.detach() for part in example())
    clean = head_loss(hidden, weight, bias, labels)
    hidden[0, 1] = bad
    assert torch.equal(head_loss(hidden, weight, bias, labels), clean)


def test_nothing_to_train_on_is_zero_not_nan() -> None:
    hidden, weight, bias, labels = example()
    found = head_loss(hidden, weight, bias, torch.full_like(labels, IGNORE))
    found.backward()
    assert float(found.detach()) == 0.0
    assert hidden.grad is not None
    assert not hidden.grad.any()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_logits_exist_for_a_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, positions, width = 65_536, 64, 4
    monkeypatch.setattr(module, "CHUNK", 8 * vocabulary)
    hidden = torch.randn(1, positions, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    labels = torch.zeros(1, positions, dtype=torch.long)
    with Live() as seen:
        head_loss(hidden, weight, None, labels).backward()
    assert seen.largest == 4 * 8 * vocabulary
