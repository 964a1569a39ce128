"""What becomes of an answer with which the API server refuses to make an object."""

import pytest

from mfsdp_operator.actor import refusal
from mfsdp_operator.kube import KubeError

INVALID = 'Pod "llama-1-0" is invalid: spec.containers[1].image: Required value'
UNREADABLE = 'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal object'
UNKNOWN = (
    'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field '
    '"spec.containers[0].resources.limit"'
)
POLICY = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"


@pytest.mark.parametrize(("status", "said"), [(422, INVALID), (400, UNREADABLE), (400, UNKNOWN)])
def test_an_invalid_pod_is_refused_for_good_with_the_fix(status: int, said: str) -> None:
    refused = refusal(KubeError(status, "Invalid", said), "pod")
    assert (refused.reason, refused.permanent) == ("CreateInvalid", True)
    assert said in str(refused)
    assert str(refused).endswith("; fix spec.template and create the job again")


@pytest.mark.parametrize(
    ("status", "said", "reason"),
    [
        (403, "exceeded quota: pods", "QuotaExceeded"),
        (403, "violates PodSecurity", "CreateForbidden"),
        (422, 'admission webhook "x" denied the request', "WebhookRefused"),
        (422, POLICY, "PolicyRefused"),
        (400, "no", "CreateRefused"),
    ],
)
def test_what_may_change_is_asked_again(status: int, said: str, reason: str) -> None:
    refused = refusal(KubeError(status, "", said), "pod")
    assert (refused.reason, refused.permanent) == (reason, False)


def test_an_invalid_service_is_not_the_templates_fault() -> None:
    assert not refusal(KubeError(422, "Invalid", INVALID), "service").permanent
