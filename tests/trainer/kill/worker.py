"""The trainer's worker, which writes down its losses, and dies at a given moment if it has one.

    python worker.py '{"losses": FILE, "moment": {"rank": 1, "place": "write", "count": 2}}'

The moment is the count-th time that the rank comes to the place. SIGKILL from inside is what the
kernel's memory killer or a lost node looks like to everyone else.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mfsdp_trainer.reporting import Reporter


class Death:
    """Counts how often the place is come to."""

    def __init__(self, count: int) -> None:
        self._left = count

    def near(self, function: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
        """The function, before or after which the process dies when its time has come."""

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if not after:
                self._come()
            answer = function(*arguments, **options)
            if after:
                self._come()
            return answer

        return wrapped

    def _come(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def places() -> dict[str, tuple[Any, str, bool]]:
    """Owner and name of what is called at each place, and whether death comes after it."""
    from torch.distributed.checkpoint import filesystem

    from mfsdp_trainer import files, loop
    from mfsdp_trainer.checkpoint import checkpoints, directory
    from mfsdp_trainer.checkpoint import files as checkpoint_files
    from mfsdp_trainer.checkpoint.directory import Directory
    from mfsdp_trainer.export import model as export

    return {
        "step": (loop.Loop, "_forward_backward", False),
        "update": (loop.Loop, "_step", True),
        "copy": (checkpoints.Staging, "copy", False),
        "copied": (checkpoints.Staging, "copy", True),
        "begin": (Directory, "begin", True),
        "write": (filesystem, "_write_item", False),
        "written": (checkpoint_files.Writer, "write_data", True),
        "index": (checkpoint_files.Writer, "finish", False),
        "publish": (directory, "publish_directory", False),
        "durable": (files, "sync", True),
        "published": (directory, "publish_directory", True),
        "pointed": (Directory, "point", True),
        "remove": (directory.shutil, "rmtree", False),
        "resume": (checkpoints, "restore", False),
        "export": (export, "save_file", False),
        "exported": (export, "save_file", True),
    }


def arm(moment: dict[str, Any]) -> None:
    owner, name, after = places()[moment["place"]]
    setattr(owner, name, Death(moment["count"]).near(getattr(owner, name), after=after))


def write_losses(file: Path) -> None:
    """Have rank 0 add a line a step: exact, and there before the next step."""
    told = Reporter.progress

    def progress(self: Reporter, **fields: Any) -> None:
        told(self, **fields)
        if "loss" in fields:
            line = [fields["step"], fields["loss"].hex(), fields["grad_norm"].hex()]
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")

    Reporter.progress = progress  # type: ignore[method-assign]


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    from mfsdp_trainer.worker import main

    write_losses(Path(options["losses"]))
    moment = options["moment"]
    if moment is not None and int(os.environ["RANK"]) == moment["rank"]:
        arm(moment)
    sys.exit(main())
