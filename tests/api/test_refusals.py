"""Every wrong spec is refused by the real API server, with the field and the fix; its nearest
neighbour is accepted."""

from difflib import SequenceMatcher

import pytest
from tests.api.cluster import Jobs, refusal
from tests.api.refusals import CASES, Case, base, put

from mfsdp_operator.api.cel import NAME_RULES, Rule, spec_rules
from mfsdp_operator.api.refused import REFUSED, Refused
from mfsdp_operator.api.rules import misspelt

_VALUES = {"boolean": True, "string": "optim", "integer": 1, "number": 0.5}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_refused_with_field_and_fix(jobs: Jobs, case: Case) -> None:
    said = refusal(jobs, case.manifest(case.refused))
    assert case.field in said
    assert case.says in said
    # A rule that cannot be evaluated would refuse too, but not say why.
    for broken in ("no such key", "modulus by zero", "overflow", "evaluat"):
        assert broken not in said


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_neighbour_is_accepted(jobs: Jobs, case: Case) -> None:
    jobs.try_out(case.manifest(case.accepted))


@pytest.mark.parametrize("entry", REFUSED, ids=lambda entry: f"{entry.parent}.{entry.name}")
def test_wrong_name_is_refused_with_the_right_one(jobs: Jobs, entry: Refused) -> None:
    manifest = base()
    parent = ".".join(filter(None, ("spec", entry.parent)))
    put(manifest, f"{parent}.{entry.name}", _VALUES[entry.type])
    assert misspelt(entry.name, entry.write) in refusal(jobs, manifest)


def test_unknown_field_is_refused_by_strict_validation(jobs: Jobs) -> None:
    manifest = base()
    put(manifest, "spec.useTorchFSDP3", True)
    assert 'unknown field "spec.useTorchFSDP3"' in refusal(jobs, manifest)


def test_spec_is_required(jobs: Jobs) -> None:
    manifest = base()
    del manifest["spec"]
    assert "spec: Required value" in refusal(jobs, manifest)


@pytest.mark.parametrize("rule", [*NAME_RULES, *spec_rules(())], ids=lambda rule: rule.message[:60])
def test_every_rule_has_a_case(rule: Rule) -> None:
    """Numbers apart, some case expects the rule's words (wrong names have a test of their own)."""
    assert " is not a field: write " in rule.message or any(
        SequenceMatcher(None, rule.message, case.says, autojunk=False).find_longest_match().size
        >= min(20, len(case.says))
        for case in CASES
    )
