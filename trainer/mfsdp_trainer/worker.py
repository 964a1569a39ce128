"""One process of the gang: what PID 1 starts as `python -m mfsdp_trainer.worker`.

Reads torchrun's environment, MFSDP_CONFIG and MFSDP_RUN_DIR, trains, and leaves its outcome in the
run directory. Its exit code is the outcome's.
"""

import logging
import os
import sys
from pathlib import Path

from .contract import CONFIG_FILE, Env, Reason
from .errors import TrainerError, describe, is_peer_loss, reason_of
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
        log = logging.getLogger(__name__)
        if is_peer_loss(error):
            # The rank that failed has said why: a traceback of ours would only hide it.
            log.error("lost the other ranks, one of which failed before: %s", describe(error))
        elif reason_of(error) is Reason.COLLECTIVE_TIMEOUT:
            # Where this rank waited says little; PID 1 shows where the others are.
            log.error("%s", describe(error))
        else:
            log.exception("the run broke off")
        return reporter.failed(error)
    reporter.outcome(Reason.DONE)
    return 0


def _log_to_stdout(rank: int) -> None:
    """Rank 0 tells the story; the others speak when something is wrong."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Format(rank))
    level = logging.INFO if rank == 0 else logging.WARNING
    logging.basicConfig(handlers=[handler], level=level, force=True)


class _Format(logging.Formatter):
    """Says which rank speaks, but in the story of rank 0."""

    def __init__(self, rank: int) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")
        self._trouble = logging.Formatter(f"%(asctime)s rank {rank}: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """One record, with its traceback if it has one."""
        if record.levelno > logging.INFO:
            return self._trouble.format(record)
        return super().format(record)


if __name__ == "__main__":
    sys.exit(main())
