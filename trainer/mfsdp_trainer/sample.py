"""Print text that an exported model writes: `python -m mfsdp_trainer.sample DIR --prompt "def "`.

Uses nothing of this package: an export opens with transformers alone.
"""

import argparse
import sys
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.utils import logging as transformers_logging


class PromptError(ValueError):
    """A prompt that the model cannot go on from."""


def sample(directory: str, prompt: str, tokens: int, temperature: float, seed: int) -> str:
    """The prompt and up to `tokens` tokens after it; temperature 0 takes the likeliest each.

    Stops where the model's context is full. Raises PromptError for a prompt that fills it.
    """
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
    inputs = tokenizer(prompt, return_tensors="pt")
    choice = {"do_sample": True, "temperature": temperature} if temperature > 0 else {}
    room = new_tokens(model.config, int(inputs["input_ids"].shape[1]), tokens)
    output = model.generate(
        **inputs, max_new_tokens=room, pad_token_id=tokenizer.eos_token_id, **choice
    )
    return str(tokenizer.decode(output[0], skip_special_tokens=True))


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
    parser.add_argument("--tokens", type=int, default=200, help="how many tokens to write at most")
    parser.add_argument("--temperature", type=float, default=0.7, help="0: the likeliest text")
    parser.add_argument("--seed", type=int, default=1, help="the same seed writes the same text")
    chosen = parser.parse_args(arguments)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        text = sample(
            chosen.directory, chosen.prompt, chosen.tokens, chosen.temperature, chosen.seed
        )
    except PromptError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
