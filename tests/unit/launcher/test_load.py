"""A configuration is loaded whole, or refused: for each problem a line of where, what, the fix."""

from pathlib import Path

import pytest

from mfsdp_operator.api.spec import JobSpec
from mfsdp_trainer.config import ShardingStrategy
from mfsdp_trainer.config.foreign import OURS
from mfsdp_trainer.config.load import dump_config, load_config
from mfsdp_trainer.config.problems import _plain, _walk
from mfsdp_trainer.errors import ConfigError

GOOD = """\
useTorchFSDP2: true
procsPerNode: 2
model:
  config: {model_type: llama}
data:
  sources: [{builtin: python-stdlib}]
training:
  steps: 10
  globalBatchSize: 4
  learningRate: 1e-5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(GOOD, encoding="utf-8")
    return path


def problems(file: Path, **overrides: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides)
    return str(caught.value).replace(f"{file.parent}/", "").splitlines()


def edit(file: Path, old: str, new: str) -> Path:
    file.write_text(GOOD.replace(old, new), encoding="utf-8")
    return file


def test_a_good_file(file: Path) -> None:
    config = load_config(file)
    assert config.training.learning_rate == 1e-5
    assert config.use_torch_fsdp2
    assert config.world_size == 2


def test_overrides_win(file: Path) -> None:
    config = load_config(
        file, {"training.steps": 7, "dataParallelShardingStrategy": "optim", "logging.port": 1234}
    )
    assert config.training.steps == 7
    assert config.data_parallel_sharding_strategy is ShardingStrategy.OPTIM
    assert config.logging.port == 1234


def test_what_workers_read_is_the_same(file: Path, tmp_path: Path) -> None:
    config = load_config(file)
    copy = tmp_path / "resolved.yaml"
    copy.write_text(dump_config(config), encoding="utf-8")
    assert load_config(copy) == config


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "useTorchFSDP2",
            "use_torch_fsdp2",
            "1: use_torch_fsdp2 is not a field: did you mean useTorchFSDP2?",
        ),
        (
            "useTorchFSDP2",
            "useMegatronFsdp",
            "1: useMegatronFsdp is not a field: did you mean useMegatronFSDP?",
        ),
        (
            "  learningRate",
            "  learning_rate",
            "10: training.learning_rate is not a field: did you mean learningRate?",
        ),
        (
            "  learningRate",
            "  lerningRate",
            "10: training.lerningRate is not a field: did you mean learningRate?",
        ),
        (
            "procsPerNode: 2",
            "globalBatchSize: 2",
            "2: globalBatchSize is not a field: did you mean training.globalBatchSize?",
        ),
        (
            "  learningRate",
            "  local_batch_size",
            "10: training.local_batch_size is not a field: did you mean training.microBatchSize?",
        ),
        (
            "procsPerNode: 2",
            "nodeSelector: {}",
            "2: nodeSelector is not a field: remove it, or use one of checkpoint, ",
        ),
        (
            "procsPerNode: 2",
            "zzz: 2",
            "2: zzz is not a field: remove it, or use one of checkpoint, ",
        ),
        ("1e-5", "-1e-5", "10: training.learningRate must be greater than 0.0; got -1e-05"),
        ("1e-5", "fast", "10: training.learningRate must be a number; got 'fast'"),
        ("1e-5", ".nan", "10: training.learningRate must be a finite number; got nan"),
        (
            "llama}",
            "llama, a: {b: [1, .inf]}}",
            "3: model.config.a.b.1 must be a finite number",
        ),
        (
            "builtin: python-stdlib",
            'path: "/x\\0y"',
            "6: data.sources[0].path must not hold control characters; got '/x\\x00y'",
        ),
        ("steps: 10", "steps: 1.5", "8: training.steps must be a whole number; got 1.5"),
        ("  steps: 10\n", "", "7: set exactly one of training.steps and training.epochs"),
        (
            "globalBatchSize: 4",
            "globalBatchSize: 3",
            "training.globalBatchSize 3 must be a multiple of",
        ),
        ("procsPerNode: 2", "procsPerNode: 0", "2: procsPerNode must be at least 1; got 0"),
        ("true", "perhaps", "1: useTorchFSDP2 must be true or false; got 'perhaps'"),
        (
            "procsPerNode: 2",
            "dataParallelShardingStrategy: zero3",
            "2: dataParallelShardingStrategy must be one of 'no_shard', 'optim', ",
        ),
        (
            "{model_type: llama}",
            "{}",
            "3: model.config.model_type must name a transformers model type",
        ),
        (
            "python-stdlib",
            "wikipedia",
            "6: data.sources[0].builtin must be one of 'python-stdlib'; got 'wikipedia'",
        ),
        ("[{builtin: python-stdlib}]", "[]", "6: data.sources must have at least 1 entry; got []"),
        (
            "procsPerNode: 2",
            "steps: 1\nsteps: 2",
            "3: steps is set twice, first on line 2: remove one",
        ),
        ("procsPerNode: 2", "procsPerNode: [2", ": not valid YAML: expected ',' or ']'"),
        (
            "procsPerNode: 2",
            "useMegatronFSDP: true",
            "useMegatronFSDP and useTorchFSDP2 exclude each other",
        ),
    ],
)
def test_refusals(file: Path, old: str, new: str, problem: str) -> None:
    found = problems(edit(file, old, new))
    assert any(line.startswith("run.yaml:") and problem in line for line in found), found


def test_every_problem_has_its_line_in_order(file: Path) -> None:
    text = GOOD.replace("true", "perhaps").replace("1e-5", "fast").replace("10", "ten")
    file.write_text(text, encoding="utf-8")
    assert [line.split(":")[1] for line in problems(file)] == ["1", "8", "10"]


def test_a_wrong_override_is_not_blamed_on_a_line(file: Path) -> None:
    (line,) = problems(file, **{"training.steps": 0})
    assert line == (
        "run.yaml with training.steps set on the command line or by the environment: "
        "training.steps must be at least 1; got 0"
    )


def test_an_override_below_a_value(file: Path) -> None:
    (line,) = problems(file, **{"procsPerNode.x": 0})
    assert line == "run.yaml: procsPerNode is not a mapping, so procsPerNode.x cannot be set"


@pytest.mark.parametrize("text", ["", "[1, 2]", "just text"])
def test_not_a_mapping(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    (line,) = problems(file)
    assert line == "run.yaml: must be a mapping of fields such as model, data and training"


def test_a_job_for_kubectl(file: Path) -> None:
    file.write_text("kind: MegatronFSDPJob\nspec: {}", encoding="utf-8")
    (line,) = problems(file)
    assert "run it on this machine with `make local JOB=" in line


def test_no_file(tmp_path: Path) -> None:
    (line,) = problems(tmp_path / "none.yaml")
    assert line == "none.yaml does not exist: name the configuration with --config"


def test_not_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    (line,) = problems(file)
    assert line.startswith("run.yaml is not UTF-8 text")


def test_json(file: Path) -> None:
    file.write_text(
        '{\n\t"model": {"config": {"model_type": "llama"}},\n'
        '\t"data": {"sources": [{"builtin": "python-stdlib"}]},\n'
        '\t"training": {"steps": 1, "globalBatchSize": 1, "learningRate": 1e-4, "seed": -1}\n}',
        encoding="utf-8",
    )
    (line,) = problems(file)
    assert line == "run.yaml:4: training.seed must be at least 0; got -1"


def test_names_of_other_tools_lead_to_fields_that_exist() -> None:
    known = set(_walk(JobSpec))
    paths = {path.replace("[]", "") for path in OURS.values() if not path.startswith("template.")}
    assert paths <= known, paths - known
    assert all(_plain(part) == part for name in OURS for part in name.split("."))
