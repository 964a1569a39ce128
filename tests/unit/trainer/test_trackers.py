"""Trackers get what happened, in order, and never stop or hold up what tells them."""

import json
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.config.logs import MlflowConfig, WandbConfig, WandbMode
from mfsdp_trainer.contract import Env
from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.observe.trackers import Journal, Kind, Record, Tracker, journal
from mfsdp_trainer.observe.trackers.build import open_journal
from mfsdp_trainer.observe.trackers.json_lines import JsonLines
from mfsdp_trainer.observe.trackers.mlflow import Mlflow
from mfsdp_trainer.observe.trackers.tensorboard import TensorBoard
from mfsdp_trainer.observe.trackers.wandb import Wandb

FACTS = {"engine": "torch_fsdp2", "world_size": 2}


def attempt(tracker: Tracker, start: int, steps: range, reason: str = "Done") -> None:
    """What one attempt tells a tracker that it resumes at `start`."""
    tracker.take(Record(Kind.RUN, start, 1.0, FACTS))
    for step in steps:
        values = {"loss": 1 / step, "mfu": None, "tokens_per_second": 10.0 * step}
        tracker.take(Record(Kind.STEP, step, 1.0 + step, values))
    tracker.take(Record(Kind.EVALUATION, steps[-1], 50.0, {"loss": 0.5}))
    tracker.take(Record(Kind.CHECKPOINT, steps[-1], 51.0, {"seconds": 2.0, "path": "/c"}))
    tracker.take(Record(Kind.END, steps[-1], 52.0, {"reason": reason, "seconds": {"data": 1.5}}))
    tracker.close(well=reason == "Done")


class Kept:
    """A tracker that keeps records, and waits or fails as it is told."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.closed: bool | None = None
        self.may_go = threading.Event()
        self.may_go.set()
        self.error: Exception | None = None

    def take(self, record: Record) -> None:
        self.may_go.wait(60)
        if self.error is not None:
            raise self.error
        self.records.append(record)

    def close(self, *, well: bool) -> None:
        self.closed = well

    @property
    def steps(self) -> list[int]:
        return [record.step for record in self.records]


def test_records_arrive_in_order_and_the_end_is_told() -> None:
    kept = Kept()
    told = Journal({"logging.kept": kept})
    for step in range(100):
        told.tell(Kind.STEP, step, {"loss": 1.0})
    told.close(well=True)
    assert kept.steps == list(range(100))
    assert kept.closed is True


def test_a_tracker_that_blocks_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal, "_BACKLOG", 10)
    monkeypatch.setattr(journal, "_CLOSING_BADLY", 0.2)
    blocked, free = Kept(), Kept()
    blocked.may_go.clear()
    told = Journal({"logging.blocked": blocked, "logging.free": free})
    began = time.monotonic()
    for step in range(50):
        told.tell(Kind.STEP, step, {"loss": 1.0})
        while len(free.records) <= step:
            assert time.monotonic() - began < 30, "the free tracker is held up"
            time.sleep(0)
    told.close(well=False)
    blocked.may_go.set()
    assert free.steps == list(range(50))
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == ["logging.blocked does not keep up: numbers are left out"]


def test_a_tracker_that_fails_warns_once_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server is away when the run begins: the run is told to it all the same, later."""
    monkeypatch.setattr(journal, "_RETRY", 0.0)
    kept = Kept()
    kept.error = OSError("no route to host")
    kept.may_go.clear()
    told = Journal({"logging.kept": kept})
    told.tell(Kind.RUN, 0, FACTS)
    told.tell(Kind.STEP, 1, {"loss": 1.0})
    kept.may_go.set()
    deadline = time.monotonic() + 30
    while not told.idle:
        assert time.monotonic() < deadline, "the records are not taken"
        time.sleep(0.001)
    kept.error = None
    told.tell(Kind.STEP, 2, {"loss": 1.0})
    told.close(well=True)
    assert [(record.kind, record.step) for record in kept.records] == [
        (Kind.RUN, 0),
        (Kind.STEP, 2),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "logging.kept cannot take numbers; the run goes on without: no route to host",
        "logging.kept: 2 records were left out",
    ]


def test_a_tracker_that_failed_is_left_alone_for_a_while() -> None:
    kept = Kept()
    kept.error = OSError("away")
    told = Journal({"logging.kept": kept})
    told.tell(Kind.STEP, 1, {})
    deadline = time.monotonic() + 30
    while not told.idle:
        assert time.monotonic() < deadline, "the record is not taken"
        time.sleep(0.001)
    kept.error = None
    told.tell(Kind.STEP, 2, {})
    told.tell(Kind.END, 3, {})
    told.close(well=True)
    assert kept.steps == [3]  # the last word is always tried


def test_json_lines_of_two_attempts(tmp_path: Path) -> None:
    file = tmp_path / "below" / "run.jsonl"
    attempt(JsonLines(file, attempt=1), 0, range(1, 4), "Crash")
    with file.open("ab") as torn:
        torn.write(b'{"kind": "step", "time"')  # killed in the middle of a line
    attempt(JsonLines(file, attempt=2), 2, range(3, 5))
    texts = file.read_text().splitlines()
    lines = [json.loads(text) for text in texts if text != '{"kind": "step", "time"']
    assert len(lines) == len(texts) - 1
    steps = [(x["attempt"], x["step"]) for x in lines if x["kind"] == "step"]
    assert steps == [(1, 1), (1, 2), (1, 3), (2, 3), (2, 4)]
    assert lines[1] == {
        "kind": "step",
        "time": 2.0,
        "attempt": 1,
        "step": 1,
        "loss": 1.0,
        "mfu": None,
        "tokensPerSecond": 10.0,
    }
    assert [x["kind"] for x in lines if x["attempt"] == 2] == [
        *("run", "step", "step", "evaluation", "checkpoint", "end")
    ]
    assert lines[-1]["seconds"] == {"data": 1.5}


def test_json_lines_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"logging.jsonLines .* cannot be written"):
        JsonLines(tmp_path / "file" / "run.jsonl", 1)


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_shows_a_step_once(tmp_path: Path) -> None:
    attempt(TensorBoard(tmp_path), 0, range(1, 6), "Crash")
    attempt(TensorBoard(tmp_path), 2, range(3, 5))
    found = scalars(tmp_path)
    assert [step for step, _ in found["train/loss"]] == [1, 2, 3, 4]
    assert found["eval/loss"] == [(4, 0.5)]
    assert found["checkpoint/seconds"] == [(4, 2.0)]


def offline_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("wandb/offline-run-*/*.wandb"))


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    config = WandbConfig(project="p", mode=WandbMode.OFFLINE)
    for start, steps in [(0, range(1, 4)), (2, range(3, 5))]:
        attempt(Wandb(config, "job", "uid-1", tmp_path / str(start)), start, steps)
    files = [file for start in (0, 2) for file in offline_files(tmp_path / str(start))]
    assert len(files) == 2
    assert all("uid-1" in file.name for file in files)
    logged = [list(_wandb_steps(file)) for file in files]
    assert logged == [[1, 2, 3, 3, 3], [3, 4, 4, 4]]


def _wandb_steps(file: Path) -> Iterator[int]:
    """`step` of each row of history in W&B's own log: records of LevelDB's format."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind not in (1, 4):  # not the last piece of a record
            continue
        record = wandb_internal_pb2.Record.FromString(whole)
        whole = b""
        for item in record.history.item:
            if "step" in (item.key, *item.nested_key):
                yield int(item.value_json)


def test_mlflow_goes_on_with_the_jobs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    config = MlflowConfig(tracking_uri=uri, experiment="e")
    attempt(Mlflow(config, "job", "uid-1"), 0, range(1, 4), "Crash")
    attempt(Mlflow(config, "job", "uid-1"), 2, range(3, 5))
    attempt(Mlflow(config, "other", "uid-2"), 0, range(1, 2))
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("e")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"job", "other"}
    run = runs["job"]
    assert run.info.status == "FINISHED"
    assert run.data.tags["mfsdp.engine"] == "torch_fsdp2"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [metric.step for metric in history] == [1, 2, 3, 3, 4]


def config(tmp_path: Path, **logging: Any) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {
            "model": {"config": {"model_type": "llama"}},
            "data": {"sources": [{"builtin": "python-stdlib"}]},
            "training": {"steps": 1, "globalBatchSize": 1},
            "checkpoint": {"path": str(tmp_path)},
            "logging": logging,
        }
    )


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("wandb", {"project": "p"}),
        ("mlflow", {"trackingUri": "http://127.0.0.1:9", "experiment": "e"}),
    ],
)
def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, section: dict[str, str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"logging.{name} .*add it as docs/jobs"):
        open_journal(config(tmp_path, **{name: section}))


@pytest.mark.parametrize("name", ["jsonLines", "tensorboard"])
def test_nothing_is_appended_to_in_an_object_store(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"logging.{name} s3://b/x: .* choose one on a volume"):
        open_journal(config(tmp_path, **{name: "s3://b/x"}))


def test_all_trackers_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(Env.JOB_UID, "uid-9")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    told = open_journal(
        config(
            tmp_path,
            jsonLines=str(tmp_path / "run.jsonl"),
            tensorboard=str(tmp_path / "tb"),
            wandb={"project": "p", "mode": "offline"},
            mlflow={"trackingUri": (tmp_path / "m").as_uri(), "experiment": "e"},
        )
    )
    told.tell(Kind.RUN, 0, FACTS)
    told.tell(Kind.STEP, 1, {"loss": 1.0})
    told.close(well=True)
    assert (tmp_path / "run.jsonl").read_text().count("\n") == 2
    assert scalars(tmp_path / "tb")["train/loss"] == [(1, 1.0)]
    assert offline_files(tmp_path / "wandb")
    assert list((tmp_path / "m").rglob("loss"))
