"""Checkpoints in an object store: a local server that speaks S3, and two ranks."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang
from tests.trainer.runs import Result, configuration, run_training
from tests.trainer.s3 import s3_server
from transformers import AutoModelForCausalLM

from mfsdp_trainer.checkpoint import lease as lease_module
from mfsdp_trainer.checkpoint.bucket import Bucket
from mfsdp_trainer.checkpoint.lease import Lease
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.contract import Env
from mfsdp_trainer.errors import CheckpointError, ConfigError, PreemptedError

BUCKET = "runs"
STOP = 3


@pytest.fixture(scope="module", autouse=True)
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Before the gang of this file, whose processes take over the environment."""
    directory = tmp_path_factory.mktemp("s3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(directory))
        with s3_server(directory / "server.log", BUCKET):
            yield


def config(text: Path, prefix: str, strategy: str, **checkpoint: Any) -> TrainerConfig:
    url = f"s3://{BUCKET}/{prefix}"
    defaults = {"path": url, "everySteps": 1, "keep": 2, "export": False}
    return configuration(
        text, Path("unused"), strategy=strategy, ranks=2, checkpoint=defaults | checkpoint
    )


def stopped(gang: Gang, text: Path, prefix: str) -> Bucket:
    """The bucket of a run that was stopped after step 3."""
    chosen = config(text, prefix, "optim_grads_params")
    for result in gang.results(2, run_training, chosen, STOP):
        assert isinstance(result.error, PreemptedError), result.error
    return Bucket(f"s3://{BUCKET}/{prefix}")


def test_saves_keeps_and_goes_on_exactly(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    local = config(text_file, "unused", "optim_grads_params", path=str(tmp_path / "local"))
    undisturbed: Result = gang.results(2, run_training, local)[0]
    bucket = stopped(gang, text_file, "exact/run.1")
    assert bucket.complete() == ["step-00000003", "step-00000002"]
    assert bucket.files.text("latest")[0] == "step-00000003\n"
    assert not bucket.files.exists(".lock")
    chosen = config(text_file, "exact/run.1", "optim_grads_params", export=True)
    resumed: Result = gang.results(2, run_training, chosen)[0]
    assert resumed.error is None
    assert resumed.resumed_from == STOP
    assert resumed.steps == undisturbed.steps[STOP:]
    assert bucket.complete() == ["step-00000006", "step-00000005"]


def test_exports_what_transformers_opens(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    local = config(text_file, "unused", "ddp", path=str(tmp_path / "local"), export=True)
    away = config(text_file, "export", "ddp", export=True)
    for chosen in (local, away, away):  # the second export replaces the first
        assert gang.results(2, run_training, chosen)[0].error is None
    bucket = Bucket(f"s3://{BUCKET}/export")
    found = tmp_path / "found"
    found.mkdir()
    for key in bucket.files.sizes("export"):
        with bucket.files.create_stream(key, "rb") as stream:
            (found / Path(key).name).write_bytes(stream.read())
    wanted = AutoModelForCausalLM.from_pretrained(tmp_path / "local" / "export").state_dict()
    weights = AutoModelForCausalLM.from_pretrained(found).state_dict()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    assert sorted(entry.name for entry in found.iterdir()) == sorted(
        entry.name for entry in (tmp_path / "local" / "export").iterdir()
    )


def test_a_torn_save_is_no_checkpoint_and_goes_with_the_next(gang: Gang, text_file: Path) -> None:
    bucket = stopped(gang, text_file, "torn")
    whole = set(bucket.files.sizes("step-00000003"))
    bucket.files.write_text("step-00000004/0-dead/__0_0.distcp", "half of it")
    bucket.files.write_text("step-00000003/0-dead/__0_0.distcp", "an attempt of the same step")
    assert bucket.complete() == ["step-00000003", "step-00000002"]
    bucket.begin(4)
    assert set(bucket.files.sizes("step-00000003")) == whole
    assert not bucket.files.sizes("step-00000004")


def test_a_damaged_one_is_skipped_for_the_one_before(gang: Gang, text_file: Path) -> None:
    bucket = stopped(gang, text_file, "damaged")
    (file,) = (key for key in bucket.files.sizes("step-00000003") if "__1_0" in key)
    with bucket.files.create_stream(file, "rb") as stream:
        content = bytearray(stream.read())
    content[len(content) // 2] ^= 1
    with bucket.files.create_stream(file, "wb") as stream:
        stream.write(content)
    result = gang.results(2, run_training, config(text_file, "damaged", "optim"))[0]
    assert result.error is None
    assert result.resumed_from == 2
    assert any("step-00000003 is damaged and skipped" in text for text in result.warnings)


def test_a_bucket_that_is_not_there_is_told_on_every_rank(gang: Gang, text_file: Path) -> None:
    chosen = config(text_file, "x", "ddp", path="s3://nowhere/run")
    for result in gang.results(2, run_training, chosen):
        assert isinstance(result.error, CheckpointError), result.error
        assert "s3://nowhere/run/.lock: NoSuchBucket: The specified bucket" in str(result.error)
        assert "check the bucket, the credentials" in str(result.error)


def test_other_urls_are_refused(gang: Gang, text_file: Path) -> None:
    chosen = config(text_file, "x", "ddp", path="https://host/run")
    for result in gang.results(2, run_training, chosen):
        assert isinstance(result.error, ConfigError), result.error
        assert "use a directory, or an URL s3://BUCKET/PREFIX" in str(result.error)


def lease(prefix: str) -> Lease:
    return Lease(Bucket(f"s3://{BUCKET}/{prefix}").files, renewal=0.05, patience=0.5)


def test_a_run_that_lives_keeps_its_prefix() -> None:
    with ExitStack() as first:
        lease("alive").acquire(first)
        with ExitStack() as second, pytest.raises(CheckpointError, match="in use by another run"):
            lease("alive").acquire(second)
    with ExitStack() as third:
        lease("alive").acquire(third)


def test_what_a_killed_run_left_is_taken_and_it_publishes_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed = lease("killed")
    with monkeypatch.context() as patch:
        patch.setattr(lease_module.Lease, "_renew_on", lambda _self: None)
        killed.acquire(ExitStack())
    with ExitStack() as stack:
        lease("killed").acquire(stack)
        with pytest.raises(CheckpointError, match="was taken by another run"):
            killed.require()


def test_an_earlier_attempt_of_the_same_job_is_passed_over_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(Env.JOB_UID, "a-job")
    monkeypatch.setenv(Env.ATTEMPT, "1")
    earlier = Lease(lease("attempts").files)
    with ExitStack() as stack:
        earlier.acquire(stack)
        monkeypatch.setenv(Env.ATTEMPT, "2")
        Lease(earlier.files).acquire(stack)
        with pytest.raises(CheckpointError, match="was taken by another run"):
            earlier.require()
