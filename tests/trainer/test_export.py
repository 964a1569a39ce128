"""The exported model opens in transformers, without this package, with equal logits."""

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.trainer.gang import Gang
from tests.trainer.runs import TINY, Recorder, configuration, run_training
from tests.trainer.test_start import FAMILIES, TOKENS
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.data.tokenizer import byte_tokenizer
from mfsdp_trainer.export import model as export_module
from mfsdp_trainer.export.model import shards
from mfsdp_trainer.run import build, train
from mfsdp_trainer.sample import Wish, sample
from mfsdp_trainer.world import World


def logits_after(world: World, config: TrainerConfig) -> torch.Tensor:
    """Train and export; then the logits of the trained engine, from its checkpoint."""
    train(config, world, Recorder(world.rank))
    loop, _ = build(config, world, Recorder(world.rank))
    loop.checkpoints.resume(loop.engine)
    with loop.engine.evaluation():
        return loop.engine.logits(TOKENS).detach().clone()


def exported(text: Path, path: Path, **choice: Any) -> TrainerConfig:
    return configuration(
        text,
        path,
        ranks=2,
        checkpoint={"path": str(path), "export": True},
        **choice,
    )


@pytest.mark.parametrize(
    ("family", "strategy"),
    [
        ("llama", "optim_grads_params"),
        ("qwen3-tied", "ddp"),
        ("gemma3", "optim"),
        ("qwen3-moe", "optim_grads_params"),
    ],
)
def test_opens_with_equal_logits(
    gang: Gang, text_file: Path, tmp_path: Path, family: str, strategy: str
) -> None:
    config = exported(text_file, tmp_path, strategy=strategy, model={"config": FAMILIES[family]})
    wanted = gang.results(2, logits_after, config)[0]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    with torch.no_grad():
        found = model(input_ids=TOKENS).logits
    assert model.dtype is torch.float32
    assert torch.allclose(found, wanted, atol=1e-6)
    # A second export replaces the first; nothing is left beside it.
    assert gang.results(2, run_training, config)[0].error is None
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        ".lock",
        "data",
        "export",
        "latest",
        "step-00000006",
    ]


def test_tokenizer_goes_with_it_and_everyone_may_read_it(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    config = exported(
        text_file,
        tmp_path,
        model={"config": {key: TINY[key] for key in TINY if key != "vocab_size"}},
        data={"tokenizer": {"kind": "bpe", "vocabSize": 400}},
    )
    assert gang.results(2, run_training, config)[0].error is None
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    text = "line 7: 49 is the square of 7\n\tnaïve — ελ\n"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text.encode())
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    assert len(tokenizer) == model.config.vocab_size == 400
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    for file in (tmp_path / "export").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o044 == 0o044, file.name
    assert sample(str(tmp_path / "export"), Wish("line 7", tokens=5)).startswith("line 7")


TURNS = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}END\n{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


@pytest.mark.parametrize("end", ["<|turn|>", ";"])
def test_a_model_of_chats_ends_its_turn(gang: Gang, tmp_path: Path, end: str) -> None:
    """Where the template's last word is a token of its own; else where the tokenizer ends."""
    tokenizer = byte_tokenizer().transformers
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    tokenizer.chat_template = TURNS.replace("END", end)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    talk = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
    file = tmp_path / "chat.jsonl"
    file.write_text(f"{json.dumps({'messages': talk})}\n" * 200, encoding="utf-8")
    path = tmp_path / "run"
    config = exported(
        file,
        path,
        data={
            "sources": [{"path": str(file), "format": "jsonl", "content": "chat"}],
            "tokenizer": {"kind": "huggingface", "path": str(tmp_path / "tokenizer")},
        },
        training={"steps": 40},
    )
    assert gang.results(2, run_training, config)[0].error is None
    settings = GenerationConfig.from_pretrained(path / "export")
    turn = tokenizer.convert_tokens_to_ids("<|turn|>")
    ends = [turn, tokenizer.eos_token_id] if end == "<|turn|>" else tokenizer.eos_token_id
    assert settings.eos_token_id == ends
    answer = sample(str(path / "export"), Wish("2+2", tokens=20, temperature=0, chat=True))
    assert answer == "4" if end == "<|turn|>" else answer.startswith("4;")


def test_the_loss_on_held_out_text_is_that_of_the_exported_model(
    gang: Gang, tmp_path: Path
) -> None:
    """Evaluation against plain torch: 5 sequences over 2 ranks, one of them filled up."""
    held_out = _documents(tmp_path / "text.jsonl")
    config = exported(
        tmp_path / "text.jsonl",
        tmp_path / "run",
        strategy="optim_grads",
        data={
            "sources": [{"path": str(tmp_path / "text.jsonl"), "format": "jsonl"}],
            "validationFraction": 0.2,
            "packing": "plain",  # as the rows below are made
        },
        training={"evalSequences": 5},
    )
    result = gang.results(2, run_training, config)[0]
    assert result.error is None
    before, after = result.evaluations
    assert after < before
    tokens = torch.tensor([token for text in held_out for token in (*text.encode(), 256)])
    count = (len(tokens) - 1) // 32
    rows = torch.stack([tokens[n * 32 : n * 32 + 33] for n in (i * count // 5 for i in range(5))])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "export")
    with torch.no_grad():
        logits = model(input_ids=rows[:, :-1]).logits
    loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    assert after == pytest.approx(float(loss), abs=1e-5)


def export_in_pieces(world: World, config: TrainerConfig) -> list[int]:
    """A run whose export is divided; the bytes of each file as it was written."""
    sizes: list[int] = []

    def save_file(tensors: dict[str, torch.Tensor], file: Path, **options: Any) -> None:
        sizes.append(sum(tensor.nbytes for tensor in tensors.values()))
        safetensors.torch.save_file(tensors, file, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_module, "SHARD_BYTES", 60_000)
        patch.setattr(export_module, "save_file", save_file)
        train(config, world, Recorder(world.rank))
    return sizes


@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_rank_0_holds_one_file_of_weights_at_a_time(
    gang: Gang, text_file: Path, tmp_path: Path, family: str
) -> None:
    model = {"config": FAMILIES[family]}
    one, many = tmp_path / "one", tmp_path / "many"
    whole = exported(text_file, one, strategy="optim_grads_params", model=model)
    assert gang.results(2, run_training, whole)[0].error is None
    divided = exported(text_file, many, strategy="optim_grads_params", model=model)
    sizes, others = gang.results(2, export_in_pieces, divided)
    assert others == []
    assert len(sizes) > 2
    wanted = AutoModelForCausalLM.from_pretrained(one / "export").state_dict()
    found = AutoModelForCausalLM.from_pretrained(many / "export").state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert sum(sizes) == sum(tensor.nbytes for tensor in wanted.values())
    assert max(sizes) < sum(sizes) / 2


def test_files_of_weights_are_full_but_divide_no_layer() -> None:
    sizes = [("embed", 5), ("layers.0.a", 2), ("layers.0.b", 2), ("layers.1.a", 9), ("head", 1)]
    assert shards(sizes, 9) == [["embed", "layers.0.a", "layers.0.b"], ["layers.1.a"], ["head"]]
    assert shards(sizes, 100) == [[name for name, _ in sizes]]


def _documents(file: Path) -> list[str]:
    """Writes documents; returns those that a fraction of 0.2 holds out."""
    texts = [f"document {n} says that {n} plus {n} is {2 * n}" for n in range(200)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    hashes = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return [t for t, h in zip(texts, hashes, strict=True) if int.from_bytes(h) < 0.2 * 2**64]
