"""One run of `mfsdp-train` on this machine: start it, show its progress, tell what it left."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from pydantic import ValidationError

from mfsdp_trainer.claim import ClaimedError, claimed
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.config.load import dump_config
from mfsdp_trainer.contract import Progress

from .display import open_display
from .errors import UserError
from .snapshot import Snapshot, last_line

_POLL_SECONDS: Final = 0.5
_ASK_SECONDS: Final = 2.0
_TRAINER: Final = (sys.executable, "-c", "from mfsdp_trainer.cli import main; main()")
# A proxy of the environment has no business with this machine's own port.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


class Run:
    """A run in a directory of its own: config.yaml, train.log, checkpoints/."""

    def __init__(
        self, name: str, directory: Path, config: TrainerConfig, environment: Mapping[str, str]
    ) -> None:
        self._name = name
        self._directory = directory
        self._config = config
        self._environment = environment
        self.log = directory / "train.log"

    def train(self, *, verbose: bool) -> int:
        """Train to the end; the trainer's exit code. Ctrl-C: it checkpoints, then ends.

        Raises UserError where the directory cannot be used.
        """
        try:
            Path(self._config.checkpoint.path).mkdir(parents=True, exist_ok=True)
            with claimed(self._directory):
                return self._train(verbose=verbose)
        except ClaimedError as error:
            raise UserError(f"--dir: {error}") from None
        except OSError as error:
            raise UserError(
                f"--dir {self._directory}: cannot write {error.filename or 'there'}: "
                f"{error.strerror}: choose another directory with --dir"
            ) from error

    def _train(self, *, verbose: bool) -> int:
        file = self._directory / "config.yaml"
        file.write_text(dump_config(self._config), encoding="utf-8")
        if verbose:
            return self._wait(self._start(file, None), quiet=True)
        with self.log.open("ab") as log:  # a run that goes on keeps what it said before
            code = self._wait(self._start(file, log.fileno()), quiet=False)
        if code:
            print(self._last_line(), file=sys.stderr)
            print(f"the whole log: {self.log}", file=sys.stderr)
        return code

    def _start(self, file: Path, output: int | None) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*_TRAINER, "--config", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | self._environment,
        )

    def _wait(self, trainer: "subprocess.Popen[bytes]", *, quiet: bool) -> int:
        def forward(number: int, frame: FrameType | None) -> None:
            trainer.send_signal(number)

        # The terminal sends Ctrl-C to the trainer as well; it answers with a checkpoint, and we
        # stay to show that.
        before = {
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
            signal.SIGTERM: signal.signal(signal.SIGTERM, forward),
        }
        try:
            if quiet:
                return trainer.wait()
            return self._show_until_end(trainer)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _show_until_end(self, trainer: "subprocess.Popen[bytes]") -> int:
        with open_display() as display:
            display.show(Snapshot(self._name, phase="Starting"))
            while True:
                try:
                    code = trainer.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    if (progress := self._ask()) is not None:
                        display.show(self._snapshot(progress))
                    continue
                if code == 0 and (progress := self._ask()) is not None:
                    display.show(self._snapshot(progress))
                return code

    def _ask(self) -> Progress | None:
        url = f"http://127.0.0.1:{self._config.logging.port}/progress"
        try:
            with _OPENER.open(url, timeout=_ASK_SECONDS) as answer:
                return Progress.model_validate(json.load(answer), extra="ignore")
        except (OSError, ValueError, ValidationError):
            return None  # not up yet, or gone

    def _snapshot(self, progress: Progress) -> Snapshot:
        return Snapshot(
            name=self._name,
            doing=str(progress.phase),
            step=progress.step,
            total_steps=progress.total_steps,
            loss=progress.loss,
            eval_loss=progress.eval_loss,
            tokens_per_second=progress.tokens_per_second,
            eta_seconds=progress.eta_seconds,
            resumed_from=progress.resumed_from_step,
        )

    def _last_line(self) -> str:
        log = self.log.read_text(encoding="utf-8", errors="replace")
        return last_line(log) or "the trainer ended without a word"

    def tell_results(self, prompt: str) -> None:
        """Where checkpoints and model are, and what the model writes."""
        checkpoints = Path(self._config.checkpoint.path)
        export = checkpoints / "export"
        print(f"checkpoints     {checkpoints}")
        if not self._config.checkpoint.export:
            return
        print(f"exported model  {export}")
        chat = self._config.data.chats
        options = ["--prompt", prompt, *(["--chat"] if chat else [])]
        sample = subprocess.run(
            [sys.executable, "-m", "mfsdp_trainer.sample", str(export), *options],
            capture_output=True,
            text=True,
            check=False,
        )
        if sample.returncode:
            why = last_line(sample.stderr) or "the model's program ended without a word"
            print(f"no sample: {why}", file=sys.stderr)
        else:
            said = f"it was told {prompt!r} and answered" if chat else "a sample that it wrote"
            print(f"{said}:\n{sample.stdout}", end="")
