"""The CustomResourceDefinition, put together from the typed models, the rules and the columns.

Pure: `crd()` returns a manifest; `generate.py` writes it to crds/.
"""

from typing import Any, Final

from . import names
from .cel import NAME_RULES, spec_rules
from .cel_rule import Rule
from .refused import REFUSED
from .rules import misspelt
from .schema import PRESERVE, Schema, at, structural
from .spec import JobSpec
from .status import JobStatus
from .template_schema import template_properties

COLUMNS: Final = (
    # name, type, path, priority (1: only with -o wide)
    ("Phase", "string", ".status.phase", 0),
    ("Ready", "string", ".status.workers.summary", 0),
    ("Strategy", "string", ".status.sharding.strategy", 0),
    ("Step", "integer", ".status.training.step", 0),
    ("Loss", "string", ".status.training.loss", 0),
    ("Nodes", "integer", ".spec.nodes", 0),
    ("GPUs", "integer", ".status.gpus", 0),
    ("Restarts", "integer", ".status.restarts.total", 0),
    # All conditions carry the same reason; a suspended job has no Ready.
    ("Reason", "string", ".status.conditions[0].reason", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Engine", "string", ".status.sharding.engine", 1),
    ("EtaSeconds", "integer", ".status.training.etaSeconds", 1),
)


def crd() -> dict[str, Any]:
    """The manifest that `kubectl apply -f crds/` installs."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    return {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, **({"priority": 1} if priority else {})}
            for name, kind, path, priority in COLUMNS
        ],
        "schema": {"openAPIV3Schema": _root()},
    }


def _root() -> Schema:
    root: Schema = {
        "description": "A sharded training run: applied, it trains on a gang of pods until its last"
        " step, survives faults, and leaves checkpoints and a model.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {
                "description": f"Version of the API: {names.API_VERSION}.",
                "type": "string",
            },
            "kind": {"description": f"{names.KIND}.", "type": "string"},
            "metadata": {
                # The bound is for the cost of the rules on the name.
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 253}},
            },
            "spec": spec_schema(),
            "status": status_schema(),
        },
    }
    _add_rules(root, NAME_RULES)
    return root


def spec_schema() -> Schema:
    """`spec`, with what pydantic does not say: refused names, template's outline, rules."""
    spec = structural(JobSpec)
    spec["description"] = "What to train, on what, and what to do when it fails."
    del spec["properties"]["template"][PRESERVE]
    spec["properties"]["template"]["properties"] = template_properties()
    at(spec, "model.config").update(
        required=["model_type"],
        properties={
            "model_type": {
                "description": "Type of transformers model, e.g. llama.",
                "type": "string",
                "minLength": 1,
                "maxLength": 256,
            }
        },
    )
    fields = tuple(spec["properties"])
    for parent, name, kind, write in REFUSED:
        at(spec, parent)["properties"][name] = {
            "description": f"Refused: {misspelt(name, write)}.",
            "type": kind,
        }
    _add_rules(spec, tuple(spec_rules(fields)))
    return spec


def status_schema() -> Schema:
    """`status`; its one default closes the moment before the operator's first write, in which a
    job without conditions would count as ready."""
    status = structural(JobStatus, defaults=False)
    status["description"] = "What the operator and the trainer say about the job."
    status["default"] = {"observedGeneration": -1}
    return status


def _add_rules(schema: Schema, added: tuple[Rule, ...]) -> None:
    for rule in added:
        at(schema, rule.parent).setdefault("x-kubernetes-validations", []).append(rule.schema())
