"""Configuration on standard input, facts on standard output; see the package."""

import sys

from transformers.utils import logging as transformers_logging

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.errors import TrainerError

from .model import inspect


def main() -> int:
    """0, or 1 with one line on standard error."""
    transformers_logging.set_verbosity_error()
    config = TrainerConfig.model_validate_json(sys.stdin.read(), by_alias=True, by_name=False)
    try:
        facts = inspect(config)
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(facts.model_dump_json(by_alias=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
