"""`mfsdp plan` as a person calls it; its sums are tested in tests/unit/trainer/test_plan.py."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mfsdp_operator.cli.main import main
from mfsdp_trainer.config.training import Recompute
from mfsdp_trainer.plan import gpus
from mfsdp_trainer.plan.facts import (
    Compute,
    ModelFacts,
    TensorFacts,
    UnitFacts,
    UnitKind,
    WorkCase,
    WorkFacts,
)

MODEL = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
SPEC: dict[str, Any] = {
    "nodes": 2,
    "gpusPerNode": 4,
    "useTorchFSDP2": True,
    "model": {"config": MODEL},
    "data": {"sources": [{"path": "/text/*.txt"}], "sequenceLength": 32},
    "training": {"steps": 10, "globalBatchSize": 32},
}


def job_file(tmp_path: Path, **changes: object) -> str:
    job = tmp_path / "job.yaml"
    kind = {"apiVersion": "training.mfsdp.dev/v1alpha1", "kind": "MegatronFSDPJob"}
    job.write_text(yaml.safe_dump(kind | {"metadata": {"name": "tiny"}, "spec": SPEC | changes}))
    return str(job)


def answer(monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str = "") -> None:
    """What the trainer says when it is asked about the model."""
    said = subprocess.CompletedProcess([], code, out, err)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: said)


def facts(elements: int, **changes: Any) -> str:
    """Of a model of so many numbers, in a hundred layers; its work is nothing."""
    tensor = TensorFacts(rows=1000, row=elements // 100_000, count=1)
    work = WorkFacts(activations=0, weight_copies=0, peak=0)
    found = ModelFacts(
        model_type="llama",
        tied=True,
        units=(UnitFacts(kind=UnitKind.LAYER, count=100, tensors=(tensor,)),),
        work=tuple(
            WorkCase(micro_batch=1, compute=compute, recompute=recompute, work=work)
            for compute in Compute
            for recompute in Recompute
        ),
    )
    return found.model_copy(update=changes).model_dump_json(by_alias=True)


def test_the_table_holds_every_way_to_run_and_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, 0, facts(10**10))
    assert main(["plan", job_file(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "tiny: llama, 10.00B parameters" in shown
    assert "1 sequences x 8 ranks x 4 micro-batches = 32 sequences of 32 = 1,024 tokens" in shown
    assert "h100-80gb" in shown
    for strategy in ("no_shard", "optim", "optim_grads", "optim_grads_params"):
        assert f"torch_fsdp2 {strategy}" in shown
        assert f"megatron_fsdp {strategy}" in shown
    assert "> torch_fsdp2 optim_grads_params" in shown
    assert "the job (torch_fsdp2 optim_grads_params) fits: " in shown
    assert (
        "the least sharded that does: useTorchFSDP2: true, dataParallelShardingStrategy: optim\n"
        in shown
    )


def test_where_nothing_fits_a_change_is_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, 0, facts(6 * 10**10))
    assert main(["plan", job_file(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "nor does it under any other engine and strategy; what would help:" in shown
    assert "  nodes: 4 (61.9 GiB)" in shown
    assert main(["plan", job_file(tmp_path, dataParallelShardingStrategy="optim")]) == 0
    strategy = "dataParallelShardingStrategy: optim_grads_params"
    assert f"  nodes: 4, useTorchFSDP2: true, {strategy} (" in capsys.readouterr().out
    answer(monkeypatch, 0, facts(10**13))
    assert main(["plan", job_file(tmp_path)]) == 0
    assert "shorten data.sequenceLength, use a larger GPU or a smaller" in capsys.readouterr().out


def test_recomputing_is_told_by_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ModelFacts.model_validate_json(facts(10**10))
    work = {Recompute.FULL: 10 << 30}
    cases = [
        case.model_copy(
            update={
                "work": WorkFacts(
                    activations=(size := work.get(case.recompute, 100 << 30)),
                    weight_copies=0,
                    peak=size,
                )
            }
        )
        for case in found.work
    ]
    answer(monkeypatch, 0, facts(10**10, work=tuple(cases)))
    assert main(["plan", job_file(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "\nwith training.recompute: full: activ 10.0, peak " in shown
    assert "what would help:\n  training.recompute: full (" in shown
    full = {**SPEC["training"], "recompute": "full"}
    assert main(["plan", job_file(tmp_path, training=full)]) == 0
    assert "training.recompute" not in capsys.readouterr().out


def test_the_help_lists_the_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in gpus.NAMES)


def test_json_is_for_machines_and_paths_of_the_pod_can_be_mapped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "here" / "llama"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(MODEL | {"vocab_size": 300}))
    job = job_file(
        tmp_path,
        model={"path": "/models/llama"},
        data={"sources": [{"path": "/text"}], "tokenizer": {"kind": "huggingface"}},
    )
    assert main(["plan", job]) == 1
    assert "spec.model.path: /models/llama does not exist" in capsys.readouterr().err
    arguments = ["plan", job, "--map", f"/models={tmp_path / 'here'}", "-o", "json"]
    assert main([*arguments, "--memory", "3Gi"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["gpu"]["memory"] == 3 << 30
    assert plan["parameters"] == plan["trained"] > 300 * 16
    assert plan["chosen"]["fits"] is True
    assert plan["chosen"]["memory"]["peak"] > plan["chosen"]["memory"]["states"] > 0
    assert len(plan["rows"]) == 1 + 2 * (1 + 3 * 2)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--gpu", "h1000"], "--gpu: 'h1000' is none of a10-24gb, "),
        (["--memory", "lots"], "--memory: 'lots' is no quantity of memory"),
        (["--memory", "80"], "--memory: '80' is less than any GPU has: give its unit too"),
    ],
)
def test_wrong_sizes_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    assert main(["plan", job_file(tmp_path), *flags]) == 1
    assert says in capsys.readouterr().err


def test_what_the_trainer_refuses_is_told_in_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, 1, "", "warning\nmodel.config.hiden_size is not a setting\n")
    assert main(["plan", job_file(tmp_path)]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "computing one micro-batch of llama without memory …",
        "mfsdp: model.config.hiden_size is not a setting",
    ]
    answer(monkeypatch, 0, "{}")
    assert main(["plan", job_file(tmp_path)]) == 1
    assert "the trainer installed here is of another version" in capsys.readouterr().err


def test_a_program_of_ones_own_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    container = {"name": "trainer", "command": ["sleep"]}
    job = job_file(tmp_path, template={"spec": {"containers": [container]}})
    assert main(["plan", job]) == 1
    assert "runs a program of its own" in capsys.readouterr().err


def test_without_the_trainer_the_way_to_install_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["plan", job_file(tmp_path)]) == 1
    assert "from a checkout, pip install '.[operator,trainer]'" in capsys.readouterr().err


def test_a_model_that_cannot_be_traced_is_planned_without_activations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"model_type": "odd\x1b[2J", "work": (), "untraced": "it looks at values"}
    answer(monkeypatch, 0, facts(10**10, **changes))
    assert main(["plan", job_file(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "activations are unknown, and not counted: it looks at values" in shown
    assert "\x1b[2J" not in shown
