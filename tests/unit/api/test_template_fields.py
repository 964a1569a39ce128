"""What the API server would drop unseen from a template is refused, with the right name."""

from typing import Any

import pytest
from kubernetes.aio.client import V1Container, V1PodSpec
from tests.unit.operator.views import built_in, job

from mfsdp_operator.api.job import parse_spec
from mfsdp_operator.api.names import OWN_VOLUMES
from mfsdp_operator.api.problems import InvalidSpecError
from mfsdp_operator.api.resolve import resolve
from mfsdp_operator.api.template_names import CONTAINER_FIELDS, POD_FIELDS
from mfsdp_operator.builders.config_map import build_config_map, read_pin

POD = "spec.template.spec"
TRAINER = f"{POD}.containers[0]"


def check(pod: dict[str, Any], **trainer: Any) -> tuple[str, ...]:
    """The problems of a job with this pod spec and this in its trainer."""
    containers = [{"name": "trainer", "image": "own", "command": ["run"], **trainer}]
    try:
        resolve(parse_spec({"template": {"spec": {"containers": containers, **pod}}}))
    except InvalidSpecError as error:
        return error.problems
    return ()


def test_names_are_those_of_the_client() -> None:
    assert set(V1PodSpec.attribute_map.values()) == POD_FIELDS
    assert set(V1Container.attribute_map.values()) == CONTAINER_FIELDS


@pytest.mark.parametrize(
    ("pod", "trainer", "says"),
    [
        (
            {"toleration": []},
            {},
            f"{POD}.toleration: is not a field of a pod's spec: did you mean tolerations?",
        ),
        (
            {"volumeMounts": []},
            {},
            f"{POD}.volumeMounts: is not a field of a pod's spec: "
            "it belongs to a container, for instance trainer",
        ),
        (
            {},
            {"volumeMount": []},
            f"{TRAINER}.volumeMount: is not a field of a container: did you mean volumeMounts?",
        ),
        (
            {},
            {"Image": "x"},
            f"{TRAINER}.Image: is not a field of a container: did you mean image?",
        ),
        (
            {},
            {"volumes": []},
            f"{TRAINER}.volumes: is not a field of a container: it belongs to template.spec",
        ),
        ({}, {"quux": 1}, f"{TRAINER}.quux: is not a field of a container: remove it"),
        (
            {"initContainers": [{"name": "fetch", "img": "x"}]},
            {},
            f"{POD}.initContainers[0].img: is not a field of a container: did you mean image?",
        ),
        (
            {"volumes": [{"name": "data"}]},
            {"volumeMounts": [{"name": "date", "mountPath": "/d"}]},
            f"{TRAINER}.volumeMounts[0].name: no volume date is in template.spec.volumes: "
            "did you mean data, or add it there?",
        ),
        (
            {},
            {"volumeMounts": [{"name": "models", "mountPath": "/m"}]},
            f"{TRAINER}.volumeMounts[0].name: no volume models is in template.spec.volumes: "
            "add it there",
        ),
    ],
)
def test_what_would_vanish_is_refused(
    pod: dict[str, Any], trainer: dict[str, Any], says: str
) -> None:
    assert check(pod, **trainer) == (says,)


def test_all_problems_are_told_at_once() -> None:
    assert len(check({"toleration": []}, volumeMount=[], env=[{"name": "A", "value": 5}])) == 3


def test_volumes_of_the_template_and_the_operators_own_can_be_mounted() -> None:
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("data", *OWN_VOLUMES)]
    assert check({"volumes": [{"name": "data"}]}, volumeMounts=mounts) == ()


def test_the_operators_own_volumes_are_those_that_it_makes() -> None:
    view = job(built_in())
    spec = parse_spec(view.spec)
    pin = read_pin(build_config_map(view.meta, spec, resolve(spec), "registry/trainer:1"))
    assert {volume["name"] for volume in pin.pod_template["spec"]["volumes"]} == OWN_VOLUMES
