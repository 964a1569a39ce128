"""The metrics are those of docs/reference/numbers.md, by Prometheus' conventions."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mfsdp_trainer.contract import Phase, Progress
from mfsdp_trainer.launcher.gang import Gang
from mfsdp_trainer.launcher.metrics import render
from mfsdp_trainer.launcher.rundir import RunDir
from mfsdp_trainer.launcher.view import View
from mfsdp_trainer.reporting import Reporter

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "numbers.md"
ROW = re.compile(r"^\| `(mfsdp_\w+)` \| (\w+) \| (.*?) \|", re.M)


@pytest.fixture
def text(tmp_path: Path) -> str:
    """What a node with two ranks answers once everything is known."""
    everything = {
        name: 0.5 if field.annotation == float | None else 7
        for name, field in Progress.model_fields.items()
        if name not in ("job_uid", "phase", "updated_at", "part_seconds")
    }
    for rank in (0, 1):
        reporter = Reporter(tmp_path, rank)
        reporter.phase(Phase.TRAINING)
        reporter.heartbeat(7, memory=1 << 30)
        if rank == 0:
            reporter.progress(**everything)
    gang = Gang(1, 0, 2, "127.0.0.1", 1, job_uid="uid", attempt=2)
    view = View(gang, RunDir(tmp_path), silent_seconds={0: 0.0, 1: 3.0})
    return render(view, "text/plain")[0].decode()


def test_all_are_documented(text: str) -> None:
    found = {
        sample.name: (family.type, frozenset(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    rows = ROW.findall(DOCUMENT.read_text())
    documented = {
        name: ("gauge" if kind == "info" else kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in rows
    }
    assert found == documented


def test_values(text: str) -> None:
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["mfsdp_rank_memory_bytes", "1"] == 1 << 30
    assert found["mfsdp_rank_silent_seconds", "1"] == 3
    assert found["mfsdp_tokens_total",] == 7
    assert found["mfsdp_mfu_ratio",] == 0.5
    assert found["mfsdp_run_info", "2", "uid"] == 1
