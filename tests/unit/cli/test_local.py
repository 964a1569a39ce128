"""What `mfsdp local` makes of a job on this machine, and what it refuses; tests/trainer runs it."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mfsdp_operator.api.job import parse_spec
from mfsdp_operator.cli import local_run
from mfsdp_operator.cli.errors import UserError
from mfsdp_operator.cli.local import Options, here
from mfsdp_operator.cli.local_run import Run
from mfsdp_operator.cli.main import main

SPEC = {
    "nodes": 2,
    "gpusPerNode": 0,
    "useTorchFSDP2": True,
    "model": {"config": {"model_type": "llama"}},
    "data": {"sources": [{"builtin": "python-stdlib"}]},
    "training": {"steps": 10, "globalBatchSize": 12},
    "checkpoint": {"path": "/checkpoints", "pvc": "claim"},
}


def test_the_gang_becomes_one_node_and_paths_become_local(tmp_path: Path) -> None:
    config = here(parse_spec(SPEC), tmp_path, Options())
    assert (config.nodes, config.procs_per_node, config.world_size) == (1, 2, 2)
    assert config.checkpoint.path == str(tmp_path / "checkpoints")
    assert config.resolve().strategy == "optim_grads_params"


def test_nproc_must_divide_the_batch(tmp_path: Path) -> None:
    assert here(parse_spec(SPEC), tmp_path, Options(nproc=3)).world_size == 3
    with pytest.raises(UserError, match=r"globalBatchSize 12 must be a multiple of .* = 1 x 5 = 5"):
        here(parse_spec(SPEC), tmp_path, Options(nproc=5))


def test_paths_of_the_pod_can_be_mapped(tmp_path: Path) -> None:
    spec = parse_spec(
        SPEC
        | {
            "model": {"path": "/models/llama"},
            "data": {"sources": [{"path": "/text/*.txt"}], "tokenizer": {"kind": "huggingface"}},
        }
    )
    (tmp_path / "m" / "llama").mkdir(parents=True)
    models = ("/models", tmp_path / "m")
    with pytest.raises(UserError, match=r"spec.model.path: /models/llama does not exist .* --map"):
        here(spec, tmp_path, Options())
    with pytest.raises(UserError, match=r"spec.data.sources\[0\].path: .*--map /text=DIRECTORY"):
        here(spec, tmp_path, Options(mapped=(models,)))
    config = here(spec, tmp_path, Options(mapped=(models, ("/text", tmp_path))))
    assert config.model.path == str(tmp_path / "m" / "llama")
    assert config.data.sources[0].path == f"{tmp_path}/*.txt"


def test_every_path_of_the_pod_is_one_here(tmp_path: Path) -> None:
    (tmp_path / "in" / "step-00000005").mkdir(parents=True)
    spec = parse_spec(
        SPEC
        | {
            "data": {
                "sources": [{"path": "/in/a"}],
                "validation": [{"path": "/in/b"}],
                "tokenizer": {"chatTemplate": "/in/chat.jinja"},
                "cachePath": "/checkpoints/cache",
            },
            "checkpoint": {"warmStart": "/in/step-00000005"},
            "logging": {"jsonLines": "/checkpoints/run.jsonl", "tensorboard": "/logs/tb"},
        }
    )
    for name in ("a", "b", "chat.jinja"):
        (tmp_path / "in" / name).touch()
    mapped = (("/in", tmp_path / "in"), ("/logs", tmp_path / "logs"))
    text = here(spec, tmp_path / "run", Options(mapped=mapped)).model_dump_json()
    assert re.findall(r'"/(?:in|logs|checkpoints)\b[^"]*"', text) == []
    with pytest.raises(UserError, match=r"spec.logging.tensorboard: .*--map /logs=DIRECTORY"):
        here(spec, tmp_path / "run", Options(mapped=mapped[:1]))
    (tmp_path / "in" / "b").unlink()
    with pytest.raises(UserError, match=r"spec.data.validation\[0\].path: .* does not exist"):
        here(spec, tmp_path / "run", Options(mapped=mapped))


def test_missing_gpus_are_refused(tmp_path: Path) -> None:
    spec = parse_spec(
        SPEC | {"gpusPerNode": 6, "nodes": 256, "training": {"steps": 1, "globalBatchSize": 1536}}
    )
    with pytest.raises(UserError, match="set gpusPerNode to 0 to train on the CPU"):
        here(spec, tmp_path, Options(nproc=256))


def test_a_program_of_ones_own_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "{apiVersion: training.mfsdp.dev/v1alpha1, kind: MegatronFSDPJob, metadata: {name: own},"
        " spec: {template: {spec: {containers: [{name: trainer, command: [sleep]}]}}}}"
    )
    assert main(["local", str(job)]) == 1
    assert "run that program yourself" in capsys.readouterr().err


def test_without_the_trainer_the_way_to_install_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    job = tmp_path / "job.yaml"
    kind = {"apiVersion": "training.mfsdp.dev/v1alpha1", "kind": "MegatronFSDPJob"}
    job.write_text(yaml.safe_dump(kind | {"metadata": {"name": "small"}, "spec": SPEC}))
    assert main(["local", str(job)]) == 1
    assert "from a checkout, pip install '.[operator,trainer]'" in capsys.readouterr().err


TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "nlp"}},
    "spec": {
        "hostNetwork": True,
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": None,
        "initContainers": [{"name": "get", "image": "x"}],
        "volumes": [{"name": "a", "emptyDir": {}}],
        "containers": [
            {"name": "logs", "image": "x"},
            {
                "name": "trainer",
                "image": "mine",
                "env": [
                    {"name": "KEY_OF_THE_CLUSTER", "valueFrom": {"secretKeyRef": {}}},
                    {"name": "KEY_OF_THE_SHELL", "valueFrom": {"secretKeyRef": {}}},
                    {"name": "PLAIN", "value": "of the job"},
                ],
                "envFrom": [{"secretRef": {"name": "more"}}],
            },
        ],
    },
}


def test_what_of_the_template_is_not_here_is_told_and_keys_come_from_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_THE_SHELL", "secret")
    monkeypatch.delenv("KEY_OF_THE_CLUSTER", raising=False)
    tell = "import os, sys; print(*map(os.environ.get, ('KEY_OF_THE_SHELL', 'PLAIN'))); sys.exit(3)"
    monkeypatch.setattr(local_run, "_TRAINER", (sys.executable, "-c", tell))
    job = tmp_path / "job.yaml"
    kind = {"apiVersion": "training.mfsdp.dev/v1alpha1", "kind": "MegatronFSDPJob"}
    spec = SPEC | {"template": TEMPLATE}
    job.write_text(yaml.safe_dump(kind | {"metadata": {"name": "small"}, "spec": spec}))
    assert main(["local", str(job), "--dir", str(tmp_path / "run")]) == 3
    assert (tmp_path / "run" / "train.log").read_text() == "secret of the job\n"
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: not applied on this machine, from template: metadata.labels, spec.hostNetwork, "
        "spec.imagePullSecrets, spec.initContainers, spec.volumes, the container logs, "
        "the trainer's envFrom, the trainer's image",
        "note: KEY_OF_THE_CLUSTER has its value from the cluster (valueFrom); here it is unset: "
        "set it in your shell",
        "note: KEY_OF_THE_SHELL has its value from the cluster (valueFrom); here it is "
        "your shell's",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--nproc", "0"], "above 0"),
        (["--map", "data=here"], "must be POD=HERE"),
    ],
)
def test_wrong_flags_are_told(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["local", "job.yaml", *arguments])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    config = here(parse_spec(SPEC), tmp_path / "run", Options())
    with pytest.raises(UserError, match=r"--dir .*/run: cannot write .*: Not a directory: choose"):
        Run("small", tmp_path / "run", config, {}).train(verbose=False)
