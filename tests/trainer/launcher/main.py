"""`mfsdp-train` with another worker and shorter limits: python main.py '{"scenario": ...}' FLAGS.

The command line itself has no way to do this: both are Python parameters.
"""

import json
import sys
from pathlib import Path

from mfsdp_trainer.launcher.stop import StopRequests

if __name__ == "__main__":
    stop = StopRequests()
    stop.listen()
    from mfsdp_trainer.cli.command import run
    from mfsdp_trainer.config import HangConfig
    from mfsdp_trainer.launcher.gang import Limits

    options = json.loads(sys.argv[1])
    limits = Limits(HangConfig(**options.get("hang", {})), **options.get("limits", {}))
    worker = ("-u", str(Path(__file__).with_name("worker.py")), options["scenario"])
    sys.exit(run(sys.argv[2:], stop, worker, limits))
