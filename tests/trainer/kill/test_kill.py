"""A rank that is killed at any moment costs the steps since the last checkpoint, and no bit more.

One run is killed again and again, each time at another moment, and started again by the real
launcher. Its losses, step for step, and the model at its end are those of a run left alone.
"""

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file
from tests.trainer.launcher.conftest import free_port
from tests.trainer.runs import TINY, configuration
from torch import equal

from mfsdp_trainer.checkpoint.directory import Directory
from mfsdp_trainer.checkpoint.store import damage
from mfsdp_trainer.config.load import dump_config
from mfsdp_trainer.contract import ExitCode

HERE = Path(__file__).parent
DEADLINE = 120.0
EVERY = 2
MODEL = {"config": {**TINY, "attention_dropout": 0.1}}
RANK_0_ALONE = (
    "begin", "index", "publish", "durable", "published", "pointed", "remove", "export", "exported",
)  # fmt: skip
"""Places that only rank 0 comes to."""
EITHER = ("step", "update", "copy", "copied", "write", "written", "resume")
A_SAVE = {"write": 40, "durable": 6, "pointed": 2}
"""About how often some are come to in one save."""

type Moment = dict[str, Any]


@dataclass
class Job:
    """One job: its directory, and the attempts made so far."""

    directory: Path
    config: Path

    @classmethod
    def make(cls, directory: Path, text: Path, steps: int) -> "Job":
        path = directory / "checkpoints"
        config = configuration(
            text,
            path,
            strategy="optim_grads_params",
            ranks=2,
            model=MODEL,
            training={"steps": steps},
            checkpoint={"path": str(path), "everySteps": EVERY, "keep": 2, "export": True},
        )
        file = directory / "run.yaml"
        file.write_text(dump_config(config), encoding="utf-8")
        return cls(directory, file)

    def attempt(self, moment: Moment | None) -> int:
        """Start it; the exit code of `mfsdp-train`."""
        options = {"losses": str(self.directory / "losses"), "moment": moment}
        command = [
            sys.executable,
            str(HERE / "main.py"),
            json.dumps(options),
            f"--config={self.config}",
            f"--set=logging.port={free_port()}",
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.directory)}
        with (self.directory / "log").open("ab") as log:
            return subprocess.run(
                command, stdout=log, stderr=log, env=env, timeout=DEADLINE, check=False
            ).returncode

    def losses(self) -> list[tuple[int, str, str]]:
        """Every step of every attempt, in order."""
        file = self.directory / "losses"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [(step, loss, norm) for step, loss, norm in map(json.loads, lines)]

    def newest(self) -> int:
        """The newest checkpoint's step; 0 if there is none. Each there is must be whole."""
        store = Directory(Path(yaml.safe_load(self.config.read_text())["checkpoint"]["path"]))
        names = store.complete()
        for name in names:
            manifest = store.manifest(name)
            assert manifest is not None, name
            assert damage(store, name, manifest, part=0, parts=1) is None
        return int(names[0].removeprefix("step-")) if names else 0

    def log(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace")


def moments(count: int, seed: int) -> list[Moment]:
    """Seeded moments, every place at least once if there are enough; those of an export last."""
    choice = random.Random(seed)
    places = [*RANK_0_ALONE, *EITHER]
    drawn = [*places, *choice.choices(EITHER, k=max(0, count - len(places)))][:count]
    choice.shuffle(drawn)
    # There must be a checkpoint to resume from, and a last step to export.
    drawn.sort(key=lambda place: (place.startswith("export"), place == "resume"))
    return [_moment(place, choice) for place in drawn]


def _moment(place: str, choice: random.Random) -> Moment:
    # In the first saves and steps of an attempt, so that the next one has something left to do.
    most = 1 if place in ("resume", "export", "exported") else 2 * A_SAVE.get(place, 1)
    rank = 0 if place in RANK_0_ALONE else choice.randrange(2)
    return {"rank": rank, "place": place, "count": choice.randint(1, most)}


def check(tmp_path: Path, text: Path, chosen: list[Moment], steps: int) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    alone.mkdir(), killed.mkdir()
    undisturbed = Job.make(alone, text, steps)
    assert undisturbed.attempt(None) == ExitCode.DONE, undisturbed.log()
    wanted = {step: (loss, norm) for step, loss, norm in undisturbed.losses()}
    assert sorted(wanted) == list(range(1, steps + 1))
    job = Job.make(killed, text, steps)
    for moment in [*chosen, None]:
        before, seen = job.newest(), len(job.losses())
        code = job.attempt(moment)
        assert code == (ExitCode.DONE if moment is None else ExitCode.CRASH), (moment, job.log())
        assert moment is None or "was ended by SIGKILL" in job.log().splitlines()[-1], moment
        taken = job.losses()[seen:]
        # It goes on behind the newest checkpoint that there was, and loses at most one save.
        assert [step for step, _, _ in taken] == list(range(before + 1, before + 1 + len(taken)))
        assert job.newest() >= before
        for step, loss, norm in taken:
            assert (loss, norm) == wanted[step], (moment, step)
    models = [load_file(d / "checkpoints/export/model.safetensors") for d in (alone, killed)]
    assert models[0].keys() == models[1].keys()
    assert all(equal(models[0][name], models[1][name]) for name in models[0])
    left = {entry.name for entry in (killed / "checkpoints").iterdir() if entry.name[0] == "."}
    assert left == {".lock"}


def test_killed_inside_saves(tmp_path: Path, text_file: Path) -> None:
    chosen = [
        {"rank": 1, "place": "write", "count": 60},
        {"rank": 0, "place": "published", "count": 2},
    ]
    check(tmp_path, text_file, chosen, steps=10)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_killed_at_twenty_moments(tmp_path: Path, text_file: Path) -> None:
    check(tmp_path, text_file, moments(20, seed=20), steps=100)
