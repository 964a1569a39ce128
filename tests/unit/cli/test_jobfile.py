"""`mfsdp validate` and `mfsdp render`: file and line of every problem, exit codes."""

import io
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from mfsdp_operator.cli.main import main
from mfsdp_trainer.config.load import load_config

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
JOB = """\
apiVersion: training.mfsdp.dev/v1alpha1
kind: MegatronFSDPJob
metadata:
  name: small
spec:
  gpusPerNode: 0
  nodes: 2
  model: {config: {model_type: llama}}
  data: {sources: [{builtin: python-stdlib}]}
  training:
    steps: 10
    globalBatchSize: 4
    learningRate: 1e-5
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_examples_are_valid(capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(str(path) for path in EXAMPLES.rglob("*.yaml"))
    assert main(["validate", *files]) == 0
    out = capsys.readouterr().out
    assert "quickstart: valid: torch_fsdp2 optim_grads_params on 2 ranks" in out
    assert "quickstart-pvc.yaml: holds no MegatronFSDPJob" in out


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (("globalBatchSize: 4", "globalBatchSize: 5"), 12, "must be a multiple of"),
        (("nodes: 2", "nodes: 0"), 7, "spec.nodes: must be at least 1; got 0"),
        (("nodes: 2", 'nodes: "2"'), 7, "spec.nodes: must be a whole number"),
        (("nodes: 2", "nodez: 2"), 7, "spec.nodez: is not a field: did you mean nodes?"),
        (("nodes: 2", "use_torch_fsdp2: true"), 7, "write useTorchFSDP2"),
        (("nodes: 2", "nodeSelector: {}"), 7, "did you mean template.spec.nodeSelector?"),
        (("steps: 10", "train_iters: 10"), 11, "did you mean training.steps?"),
        (("    steps: 10\n", ""), 10, "spec.training: set exactly one of training.steps and"),
        (("builtin: python-stdlib", "builtin: wiki"), 9, "spec.data.sources[0].builtin"),
        (("name: small", "name: Small"), 4, "metadata.name: must consist of"),
        (("kind: MegatronFSDPJob", "kind: MegatronFsdpJob"), 2, "must be MegatronFSDPJob"),
        (("steps: 10", "steps: 10\n    steps: 11"), 12, "steps is set twice, first on line 11"),
        (("metadata:", "metadata"), 4, "not valid YAML"),
        (("name: small", "labels: {}"), 3, "metadata.name: is required"),
        (("spec:", "Spec:"), 5, "Spec: is not a field: did you mean spec?"),
        (("spec:", "other: 1\nspec:"), 5, "other: is not a field: remove it, or use one of api"),
        (("spec:", "spec: text\nstatus:"), 5, "spec: must be a mapping of fields; got 'text'"),
        (("llama}", "llama, x: [.nan]}"), 8, "spec.model.config.x[0]: must be a finite number"),
        (("nodes: 2", "template: {spec: {x: .inf}}"), 7, "template.spec.x: must be a finite"),
        (("nodes: 2", "nodes: !!set {a}"), 7, "!!set is no kind of value"),
        (("python-stdlib", '"\\0"'), 9, "spec.data.sources[0].builtin"),
        (
            ("    steps: 10", "    freeze: ['a{99999999999}']\n    steps: 10"),
            11,
            "training.freeze[0]: 'a{99999999999}' is not a regular expression: the repet",
        ),
    ],
)
def test_problem_has_file_line_field_and_fix(
    change: tuple[str, str],
    line: int,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write(tmp_path, JOB.replace(*change))
    assert main(["validate", file]) == 1
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith(f"{file}:{line}: ")
    assert says in first


def test_a_pattern_that_python_warns_of_is_taken_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, JOB + "    freeze: ['[[a]']\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["validate", file]) == 0
    assert capsys.readouterr().err == ""


def test_all_problems_are_told_in_the_order_of_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = JOB.replace("globalBatchSize: 4", "globalBatchSize: 5").replace(
        "gpusPerNode: 0", "useMegatronFSDP: true\n  gpusPerNode: 0\n  checkpoint: {path: here}"
    )
    assert main(["validate", write(tmp_path, wrong)]) == 1
    fields = [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]
    assert fields == [
        "spec.useMegatronFSDP",
        "spec.checkpoint.path",
        "spec.training.globalBatchSize",
    ]


def test_template_is_checked_as_the_operator_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = "{name: trainer, env: [{name: MASTER_ADDR, value: x}]}"
    template = f"  template: {{spec: {{containers: [{trainer}]}}}}\n"
    assert main(["validate", write(tmp_path, JOB + template)]) == 1
    assert "MASTER_ADDR" in capsys.readouterr().err


def test_standard_input_and_missing_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(JOB))
    assert main(["validate", "-", str(tmp_path / "none.yaml")]) == 1
    captured = capsys.readouterr()
    assert "<stdin>: small: valid" in captured.out
    assert "none.yaml: No such file or directory" in captured.err


def test_render_prints_what_the_trainer_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", write(tmp_path, JOB)]) == 0
    rendered = capsys.readouterr().out
    config = load_config(write(tmp_path, rendered))
    assert config.training.learning_rate == 1e-5
    assert yaml.safe_load(rendered)["dataParallelShardingStrategy"] == "no_shard"


def test_render_asks_which_of_several_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = write(tmp_path, f"{JOB}---\n{JOB.replace('name: small', 'name: other')}---\n")
    assert main(["render", both]) == 1
    assert "choose one with --name: small, other" in capsys.readouterr().err
    assert main(["render", both, "--name", "other"]) == 0
    assert main(["render", both, "--name", "third"]) == 1
    assert "has no job third, but small, other" in capsys.readouterr().err


def test_render_shows_what_a_program_of_ones_own_gets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = "{name: A, value: $(NODE_RANK)}, {name: TOKEN, valueFrom: {secretKeyRef: {}}}"
    trainer = f"{{name: trainer, image: x, command: [run, $(A) $$(A) $(B)], env: [{env}]}}"
    own = JOB[: JOB.index("  model:")] + f"  template: {{spec: {{containers: [{trainer}]}}}}\n"
    assert main(["render", write(tmp_path, own)]) == 0
    out = capsys.readouterr().out
    shown = yaml.safe_load(out)
    assert shown["command"] == ["run", "0 $(A) $(B)"]
    assert (shown["env"]["A"], shown["env"]["NNODES"]) == ("0", "2")
    assert "# TOKEN: known in the cluster" in out


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"checkpoint": {"path": "/c", "pvc": "c"}}, "2 ranks"),
        ({"model": {"path": "/m"}}, "2 ranks; model is not read by it"),
        (
            {
                "model": {"path": "/m"},
                "data": {"sources": [{"path": "/d"}]},
                "training": {"steps": 1, "globalBatchSize": 2},
            },
            "2 ranks; model, data and training are not read by it",
        ),
        (
            {"hang": {"stepSeconds": 9}, "checkpoint": {"path": "/c", "everySteps": 5, "keep": 1}},
            "2 ranks; hang, checkpoint.everySteps and checkpoint.keep are not read by it",
        ),
    ],
)
def test_validate_says_what_a_program_of_ones_own_does_not_read(
    fields: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = yaml.safe_load(JOB)
    own = {"spec": {"containers": [{"name": "trainer", "command": ["run"]}]}}
    job["spec"] = {"nodes": 2, "gpusPerNode": 0, "template": own, **fields}
    assert main(["validate", write(tmp_path, yaml.safe_dump(job))]) == 0
    assert capsys.readouterr().out.endswith(f"valid: a program of its own on {says}\n")


@pytest.mark.parametrize(
    ("fields", "args"),
    [
        ({}, "--use_megatron_fsdp true --data_parallel_sharding_strategy optim_grads_params "),
        ({"dataParallelShardingStrategy": "optim"}, "--use_megatron_fsdp true"
         " --data_parallel_sharding_strategy optim "),
        ({"useMegatronFSDP": False, "dataParallelShardingStrategy": "no_shard"}, ""),
    ],
    ids=["as it is", "another strategy", "without an engine"],
)  # fmt: skip
def test_megatron_swift_gets_the_sharding_fields_as_arguments(
    fields: dict[str, Any], args: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = yaml.safe_load((EXAMPLES / "own-program" / "megatron-swift.yaml").read_text())
    example["spec"] |= fields
    assert main(["render", write(tmp_path, yaml.safe_dump(example))]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    shell, flags, line = shown["command"]
    assert (shell, flags) == ("bash", "-ec")
    megatron = 'megatron() { echo "$*"; }; '
    done = subprocess.run(
        [shell, flags, megatron + line.removeprefix("exec ")],
        env=shown["env"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"sft {args}--model /models/qwen3-8b --dataset ")
    assert " --output_dir /checkpoints " in done.stdout


@pytest.mark.parametrize(
    ("trainer", "says"),
    [
        ("env: [{name: A, value: 5}]", "env[0].value: must be a string, not 5: put it in quotes"),
        ('env: [{value: "5"}]', "env[0].name: is required: add it"),
        ("command: sleep", "command: must be a list, not 'sleep'"),
        ("command: [sleep, 5]", "command[1]: must be a string, not 5: put it in quotes"),
    ],
)
def test_shapes_in_template_are_those_of_the_api(
    trainer: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = f"  template: {{spec: {{containers: [{{name: trainer, {trainer}}}]}}}}\n"
    assert main(["validate", write(tmp_path, JOB + template)]) == 1
    assert f":14: spec.template.spec.containers[0].{says}" in capsys.readouterr().err


def test_what_only_the_api_server_writes_is_not_read(tmp_path: Path) -> None:
    exported = JOB.replace("  name: small", "  name: small\n  generation: [none]")
    assert main(["validate", write(tmp_path, exported + "status: {phase: Odd, new: 1}\n")]) == 0
