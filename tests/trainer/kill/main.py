"""`mfsdp-train` with the worker beside this file: python main.py OPTIONS FLAGS."""

import sys
from pathlib import Path

from mfsdp_trainer.launcher.stop import StopRequests

if __name__ == "__main__":
    stop = StopRequests()
    stop.listen()
    from mfsdp_trainer.cli.command import run
    from mfsdp_trainer.launcher.gang import Limits

    worker = ("-u", str(Path(__file__).with_name("worker.py")), sys.argv[1])
    sys.exit(run(sys.argv[2:], stop, worker, Limits()))
