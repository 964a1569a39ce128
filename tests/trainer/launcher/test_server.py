"""What PID 1 serves while workers do as they like."""

import json
import signal
import socket
import urllib.error

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mfsdp_trainer.contract import Progress, Reason

from .conftest import Launcher, free_port, until

POD = {"MFSDP_JOB_UID": "8d9f-uid", "MFSDP_ATTEMPT": "3"}


def test_progress_echoes_job_and_attempt(launch: Launcher) -> None:
    run = launch("train", env=POD)
    run.until_progress("rank 0's numbers", lambda progress: progress["loss"] is not None)
    answer = run.get("/progress")
    values = json.loads(answer)
    assert values["jobUid"] == "8d9f-uid"
    assert values["attempt"] == 3
    assert values["phase"] == "Training"
    assert values["loss"] == pytest.approx(1 / values["step"])
    assert Progress.model_validate_json(answer).updated_at > 0


def test_metrics(launch: Launcher) -> None:
    run = launch("train", env=POD)
    run.until_progress("rank 0's numbers", lambda progress: progress["loss"] is not None)
    families = text_string_to_metric_families(run.get("/metrics").decode())
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    assert found["mfsdp_step",] >= 1
    assert found["mfsdp_loss",] == pytest.approx(1 / found["mfsdp_step",])
    assert found["mfsdp_run_info", "3", "8d9f-uid"] == 1
    assert found["mfsdp_spent_seconds_total", "launch"] > 0
    assert found["mfsdp_spent_seconds_total", "training"] > 0
    assert found["mfsdp_phase", "Training"] == 1
    assert found["mfsdp_phase", "Loading"] == 0
    assert {("mfsdp_rank_silent_seconds", "0"), ("mfsdp_rank_silent_seconds", "1")} <= set(found)
    assert ("mfsdp_eval_loss",) not in found


def test_health_and_unknown_paths(launch: Launcher) -> None:
    run = launch("load")
    run.until_phase("Loading")
    assert run.get("/healthz") == b"ok\n"
    with pytest.raises(urllib.error.HTTPError, match="try /progress, /metrics or /healthz"):
        run.get("/")


def test_answers_while_workers_burn_the_cpu(launch: Launcher) -> None:
    run = launch("burn", "--nproc_per_node=4", "--set=training.globalBatchSize=4")
    run.until_training()
    for _ in range(50):
        assert run.get("/healthz") == b"ok\n"
    run.signal(signal.SIGTERM)
    run.signal(signal.SIGINT)
    assert run.wait() == Reason.CRASH.exit_code


def test_silent_clients_hold_nobody_up(launch: Launcher) -> None:
    run = launch("train")
    run.until_training()
    silent = [socket.create_connection(("127.0.0.1", run.port)) for _ in range(64)]
    until("an answer", lambda: run.progress())
    for client in silent:
        client.close()


def test_other_nodes_answer_for_their_own_ranks(launch: Launcher) -> None:
    flags = ["--nnodes=2", "--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    run = launch("train", *flags, "--node_rank=1", env=POD)
    run.until_training()
    progress = run.progress()
    assert progress is not None
    assert progress["jobUid"] == "8d9f-uid"
    assert progress["phase"] == "Training"
    assert progress["loss"] is None
