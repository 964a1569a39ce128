"""Print text that an exported model writes: `python -m mfsdp_trainer.sample DIR --prompt "def "`.

Uses nothing of this package: an export opens with transformers alone.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.utils import logging as transformers_logging


class PromptError(ValueError):
    """A prompt that the model cannot go on from."""


@dataclass(frozen=True)
class Wish:
    """What the model is to write."""

    prompt: str
    tokens: int = 200
    """At most."""
    temperature: float = 0.7
    """0 takes the likeliest token each time."""
    seed: int = 1
    chat: bool = False
    """Take the prompt for what a user says, and give the answer alone."""


def sample(directory: str, wish: Wish) -> str:
    """The prompt and what comes after it; of a chat the answer.

    Stops where the model's context is full. Raises PromptError for a prompt that fills it.
    """
    torch.manual_seed(wish.seed)
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
    inputs = _inputs(tokenizer, wish)
    length = int(inputs["input_ids"].shape[1])
    choice = {"do_sample": True, "temperature": wish.temperature} if wish.temperature > 0 else {}
    room = new_tokens(model.config, length, wish.tokens)
    output = model.generate(
        **inputs, max_new_tokens=room, pad_token_id=tokenizer.eos_token_id, **choice
    )
    written = output[0, length if wish.chat else 0 :]
    return str(tokenizer.decode(written, skip_special_tokens=True))


def _inputs(tokenizer: Any, wish: Wish) -> dict[str, Tensor]:
    if not wish.chat:
        return dict(tokenizer(wish.prompt, return_tensors="pt"))
    if not tokenizer.chat_template:
        raise PromptError("--chat: the model's tokenizer has no chat template: leave it out")
    talk = [{"role": "user", "content": wish.prompt}]
    return dict(
        tokenizer.apply_chat_template(
            talk, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
    )


def new_tokens(config: PretrainedConfig, prompt: int, wanted: int) -> int:
    """How many of the `wanted` tokens fit into the model's context after `prompt` tokens.

    Raises PromptError where none does.
    """
    # Transformers maps this name to that of the model's own kind, for instance GPT-2's n_positions.
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        return wanted
    if prompt >= context:
        raise PromptError(
            f"--prompt: {prompt} tokens leave no room in the model's context of {context}: "
            "use a shorter one"
        )
    return min(wanted, int(context) - prompt)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="mfsdp_trainer.sample", description=__doc__)
    parser.add_argument("directory", help="the exported model: checkpoint.path/export")
    parser.add_argument("--prompt", default="def ", help="text to go on from")
    parser.add_argument(
        "--tokens", type=int, default=Wish.tokens, help="how many tokens to write at most"
    )
    parser.add_argument(
        "--temperature", type=float, default=Wish.temperature, help="0: the likeliest text"
    )
    parser.add_argument(
        "--seed", type=int, default=Wish.seed, help="the same seed writes the same text"
    )
    parser.add_argument("--chat", action="store_true", help="the prompt is what a user says")
    chosen = vars(parser.parse_args(arguments))
    directory = chosen.pop("directory")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        text = sample(directory, Wish(**chosen))
    except PromptError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
