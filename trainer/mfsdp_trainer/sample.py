"""Print text that an exported model writes: `python -m mfsdp_trainer.sample DIR --prompt "def "`.

Uses nothing of this package: an export opens with transformers alone.
"""

import argparse
import sys
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging


def sample(directory: str, prompt: str, tokens: int, temperature: float, seed: int) -> str:
    """The prompt and up to `tokens` tokens after it; temperature 0 takes the likeliest each."""
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
    inputs = tokenizer(prompt, return_tensors="pt")
    choice = {"do_sample": True, "temperature": temperature} if temperature > 0 else {}
    output = model.generate(
        **inputs, max_new_tokens=tokens, pad_token_id=tokenizer.eos_token_id, **choice
    )
    return str(tokenizer.decode(output[0], skip_special_tokens=True))


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
    text = sample(chosen.directory, chosen.prompt, chosen.tokens, chosen.temperature, chosen.seed)
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
