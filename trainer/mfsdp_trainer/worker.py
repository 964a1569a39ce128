"""One process of the gang: what PID 1 starts as `python -m mfsdp_trainer.worker`.

Reads torchrun's environment, MFSDP_CONFIG and MFSDP_RUN_DIR, trains, and leaves its outcome in the
run directory. Its exit code is the outcome's.
"""

import logging
import os
import sys
from pathlib import Path

from .contract import CONFIG_FILE, Env, Reason
from .errors import TrainerError
from .reporting import Reporter


def main() -> int:
    """Run, and tell how it ended; returns the exit code."""
    reporter = Reporter.from_env()
    _log_to_stdout(reporter.rank)
    try:
        # Late: torch and transformers take seconds, in which the reporter is in place already.
        from .config.load import load_config
        from .run import run

        run(load_config(Path(os.environ.get(Env.CONFIG) or CONFIG_FILE)), reporter)
    except TrainerError as error:
        logging.getLogger(__name__).error("%s: %s", error.reason, error)
        return reporter.failed(error)
    except Exception as error:
        logging.getLogger(__name__).exception("the run broke off")
        return reporter.failed(error)
    reporter.outcome(Reason.DONE)
    return 0


def _log_to_stdout(rank: int) -> None:
    """Rank 0 tells the story; the others speak when something is wrong."""
    logging.basicConfig(
        stream=sys.stdout,
        level=logging.INFO if rank == 0 else logging.WARNING,
        format="%(asctime)s %(message)s" if rank == 0 else f"%(asctime)s rank {rank}: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )


if __name__ == "__main__":
    sys.exit(main())
