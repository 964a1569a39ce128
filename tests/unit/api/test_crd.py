"""The generated CRD: complete, bounded, small, stable. What it does is tested on an API server."""

import json
from pathlib import Path
from typing import Literal

import pytest

from mfsdp_operator.api.crd import COLUMNS, crd, spec_schema
from mfsdp_operator.api.generate import generate, outputs
from mfsdp_operator.api.reasons import CONDITIONS, JobReason
from mfsdp_operator.api.refused import REFUSED
from mfsdp_operator.api.schema import at, structural, walk
from mfsdp_operator.api.status import JobPhase
from mfsdp_trainer.config import ConfigModel
from mfsdp_trainer.contract import Reason

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
FIELDS = [(path, field) for path, field in walk(SCHEMA) if not path.startswith("metadata")]


def test_generated_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(ROOT, check=True) == 0, capsys.readouterr().err


def test_check_writes_nothing_and_fails_on_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(tmp_path, check=True) == 1
    assert not list(tmp_path.iterdir())
    assert generate(tmp_path, check=False) == 0
    assert generate(tmp_path, check=True) == 0
    path = next(iter(outputs()))
    (tmp_path / path).write_text("something else")
    assert generate(tmp_path, check=True) == 1
    assert path in capsys.readouterr().err.splitlines()[-1]


def test_it_is_far_below_what_an_annotation_holds() -> None:
    assert len(json.dumps(crd(), separators=(",", ":"))) < 96 * 1024


@pytest.mark.parametrize(("path", "field"), FIELDS, ids=[path for path, _ in FIELDS])
def test_field_is_described_and_bounded(path: str, field: dict[str, object]) -> None:
    assert len(str(field.get("description", ""))) > 4
    if not path.startswith("spec."):
        return
    bound = {"string": "maxLength", "array": "maxItems", "integer": "maximum"}
    wanted = bound.get(str(field["type"]))
    refused = str(field["description"]).startswith("Refused: ")
    assert wanted is None or "enum" in field or refused or wanted in field, "cost of CEL rules"


def test_parents_default_so_that_defaults_inside_appear() -> None:
    spec = spec_schema()
    for path in ("checkpoint", "logging", "restarts", "data.tokenizer"):
        assert at(spec, path)["default"] == {}
    for path in ("model", "data", "training", "template", "procsPerNode"):
        assert "default" not in at(spec, path)


def test_refused_names_are_not_in_the_reference_of_fields() -> None:
    fields, _, refused = outputs()["docs/reference/api.md"].partition("## Refused")
    for entry in REFUSED:
        assert f".{entry.name}`" not in fields
        assert f"`{entry.name}` | `{entry.write}`" in refused
    assert "`spec.useTorchFSDP2` | boolean | `false`" in fields


def test_the_reference_lists_the_words_in_status() -> None:
    page = outputs()["docs/reference/api.md"]
    for word in (*JobPhase, *CONDITIONS, *JobReason):
        assert f"\n| `{word}` |" in page
    for reason in Reason:
        assert f"\n| {int(reason.exit_code)} | `{reason}` |" in page


def test_bounds_and_nulls_become_openapi() -> None:
    rate = at(spec_schema(), "training.learningRate")
    assert (rate["minimum"], rate["exclusiveMinimum"], rate["maximum"]) == (0, True, 10)
    procs = at(spec_schema(), "procsPerNode")
    assert (procs["type"], procs["minimum"]) == ("integer", 1)
    assert "nullable" not in procs


def test_a_union_has_no_place_in_a_custom_resource() -> None:
    class Either(ConfigModel):
        value: int | Literal["auto"] = 1

    with pytest.raises(TypeError, match="cannot hold a union"):
        structural(Either)


def test_the_reason_is_where_people_look() -> None:
    shown = {name for name, _, _, priority in COLUMNS if priority == 0}
    assert {"Phase", "Reason"} <= shown
    [path] = [path for name, _, path, _ in COLUMNS if name == "Reason"]
    assert path == ".status.conditions[0].reason"  # test_kstatus: it is there in every phase
