"""What the API says to who brings a program of their own."""

import re

from mfsdp_operator.api.template_schema import template_properties
from mfsdp_operator.builders.pod_env import RESERVED_ENV


def test_the_description_of_command_lists_the_variables_for_torchrun() -> None:
    container = template_properties()["spec"]["properties"]["containers"]["items"]
    said = container["properties"]["command"]["description"]
    words = set(re.findall(r"\w+", said))
    assert {name for name in RESERVED_ENV if not name.startswith("MFSDP_")} <= words
    assert "Start your script with torchrun" in said
