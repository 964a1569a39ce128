"""`mfsdp-train`: run one node of a training run, as PID 1 of a pod or by hand.

    mfsdp-train --config run.yaml --nproc_per_node 2

Exits with a code of `contract.ExitCode`; the last line on stderr says why.
"""

import sys
from typing import NoReturn

from mfsdp_trainer.launcher.stop import StopRequests


def main() -> NoReturn:
    """Entry point of `mfsdp-train`."""
    # Before the imports that take half a second: the kernel drops what PID 1 has no handler for,
    # and a pod that missed its SIGTERM holds up a drain until it is killed.
    stop = StopRequests()
    stop.listen()
    from .command import run

    sys.exit(run(sys.argv[1:], stop))
