"""The sample that an exported model writes stays inside the model's context."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig, PreTrainedTokenizerFast

from mfsdp_trainer.sample import main, new_tokens

CONTEXT = 16


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A GPT-2 of 16 positions that never ends by itself."""
    directory = tmp_path_factory.mktemp("export")
    config = GPT2Config(
        vocab_size=4, n_positions=CONTEXT, n_embd=8, n_layer=1, n_head=1, eos_token_id=None
    )
    GPT2LMHeadModel(config).save_pretrained(directory)
    words = Tokenizer(WordLevel({"a": 0, "b": 1, "c": 2, "<end>": 3}, unk_token="c"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(directory)
    return str(directory)


def test_a_short_context_ends_the_sample(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([export, "--prompt", "a b", "--tokens", "200"]) == 0
    assert 2 <= len(capsys.readouterr().out.split()) <= CONTEXT


def test_a_prompt_that_fills_the_context_is_told(
    export: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([export, "--prompt", "a " * CONTEXT]) == 1
    assert capsys.readouterr().err == (
        "--prompt: 16 tokens leave no room in the model's context of 16: use a shorter one\n"
    )


def test_new_tokens() -> None:
    gpt2 = GPT2Config(n_positions=128)
    assert (new_tokens(gpt2, 28, 200), new_tokens(gpt2, 28, 5)) == (100, 5)
    assert new_tokens(MambaConfig(), 28, 200) == 200  # a state has no end
