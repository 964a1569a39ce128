"""What the API says to who brings a program of their own."""

import re
from typing import Any

import pytest

from mfsdp_operator.api.job import parse_spec
from mfsdp_operator.api.problems import InvalidSpecError
from mfsdp_operator.api.resolve import resolve
from mfsdp_operator.api.template_schema import template_properties
from mfsdp_operator.builders.pod_env import RESERVED_ENV
from mfsdp_trainer.contract import OwnProgramEnv


def test_the_description_of_command_lists_the_variables_for_torchrun() -> None:
    container = template_properties()["spec"]["properties"]["containers"]["items"]
    said = container["properties"]["command"]["description"]
    words = set(re.findall(r"\w+", said))
    plain = {name for name in RESERVED_ENV if not name.startswith("MFSDP_")}
    assert {*plain, *OwnProgramEnv} <= words
    assert "Start your script with torchrun" in said


ONE_QUEUE = [{"name": "CUDA_DEVICE_MAX_CONNECTIONS", "value": "1"}]


@pytest.mark.parametrize(
    ("fields", "trainer", "says"),
    [
        ({"useMegatronFSDP": True, "useTorchFSDP2": True}, {}, "exclude each other"),
        ({"dataParallelShardingStrategy": "optim"}, {}, "needs an engine"),
        ({"useTorchFSDP2": True, "dataParallelReplicas": 3}, {}, "must divide the world size 4"),
        ({"useMegatronFSDP": True, "gpusPerNode": 0, "procsPerNode": 2}, {}, "needs GPUs"),
        ({"useMegatronFSDP": True}, {"env": ONE_QUEUE}, "CUDA_DEVICE_MAX_CONNECTIONS=1"),
    ],
)
def test_sharding_that_cannot_work_is_refused_for_a_program_of_ones_own_too(
    fields: dict[str, Any], trainer: dict[str, Any], says: str
) -> None:
    container = {"name": "trainer", "command": ["megatron", "sft"], **trainer}
    spec = {"nodes": 2, "gpusPerNode": 2, "template": {"spec": {"containers": [container]}}}
    resolve(parse_spec(spec))
    with pytest.raises(InvalidSpecError, match=says):
        resolve(parse_spec(spec | fields))
