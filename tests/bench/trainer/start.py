"""From the start of the launcher to the end of the first step, by part, as every run tells it.

Beside it what nobody can leave out: a process that imports torch and transformers' model classes
and does nothing.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from tests.bench.report import Figure
from tests.trainer.gang import Gang
from tests.trainer.launcher.conftest import free_port
from tests.trainer.runs import configuration

from mfsdp_trainer.config.load import dump_config
from mfsdp_trainer.observe.timeline import UNTIL_FIRST_STEP

RUNS = 3
DEADLINE = 120.0
BARE = "import torch.distributed.fsdp, transformers.modeling_utils"


def measure(_gang: Gang, text: Path, directory: Path) -> list[Figure]:
    """Medians over runs of one rank, each next to a bare import."""
    directory.mkdir(parents=True)
    runs, bare = [], []
    for number in range(RUNS + 1):
        bare.append(_bare())
        runs.append(_run(text, directory / str(number)))
    del runs[0], bare[0]  # the first one reads the libraries from disk
    parts = {
        part: median(run.get(part, 0.0) for run in runs) for part in map(str, UNTIL_FIRST_STEP)
    }
    alone = median(bare)
    against = {"imports": f"{alone:.2f} s for `{BARE}`, which is {alone / parts['imports']:.0%}"}
    figures = [
        Figure(part.replace("_", " "), f"{seconds:.2f} s", against.get(part, ""))
        for part, seconds in parts.items()
        if seconds >= 0.005
    ]
    return [*figures, Figure("until the first step is done", f"{sum(parts.values()):.2f} s", "")]


def _bare() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", BARE], check=True, timeout=DEADLINE)
    return time.perf_counter() - began


def _run(text: Path, path: Path) -> Mapping[str, float]:
    """Seconds of each part of a run of two steps."""
    path.mkdir()
    records = path / "records.jsonl"
    config = configuration(
        text,
        path,
        strategy="optim_grads_params",
        training={"steps": 2},
        logging={"jsonLines": str(records)},
    )
    file = path / "run.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    command = [
        *(sys.executable, "-c", "from mfsdp_trainer.cli import main; main()"),
        *(f"--config={file}", f"--set=logging.port={free_port()}"),
    ]
    env = {**os.environ, "TMPDIR": str(path)}
    subprocess.run(command, check=True, timeout=DEADLINE, env=env, stdout=subprocess.DEVNULL)
    lines = records.read_text(encoding="utf-8").splitlines()
    (end,) = (line for line in map(json.loads, lines) if line["kind"] == "end")
    seconds: Mapping[str, float] = end["seconds"]
    return seconds
