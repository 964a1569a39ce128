"""Whatever the API server refuses, `mfsdp validate` and the operator refuse offline in like words,
and what it accepts they accept."""

import pytest
from tests.api.refusals import CASES, Case, base, put

from mfsdp_operator.api.job import parse_job
from mfsdp_operator.api.problems import InvalidSpecError
from mfsdp_operator.api.refused import REFUSED, Refused
from mfsdp_operator.api.resolve import resolve
from mfsdp_operator.api.rules import misspelt


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_refused_with_field_and_fix(case: Case) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        resolve(parse_job(case.manifest(case.refused)).spec)
    assert any(
        line.startswith(case.field) and case.offline in line for line in caught.value.problems
    ), caught.value.problems


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_neighbour_is_accepted(case: Case) -> None:
    resolve(parse_job(case.manifest(case.accepted)).spec)


@pytest.mark.parametrize("entry", REFUSED, ids=lambda entry: f"{entry.parent}.{entry.name}")
def test_wrong_name_is_refused_with_the_right_one(entry: Refused) -> None:
    manifest = base()
    put(manifest, ".".join(filter(None, ("spec", entry.parent, entry.name))), True)
    with pytest.raises(InvalidSpecError, match=misspelt(entry.name, entry.write)):
        parse_job(manifest)
