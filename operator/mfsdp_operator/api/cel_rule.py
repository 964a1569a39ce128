"""One validation rule of the CRD."""

from typing import Any, NamedTuple


class Rule(NamedTuple):
    """A rule at an object of the spec (`parent`, a path), blamed on `field` (a path below it)."""

    parent: str
    rule: str
    message: str
    field: str = ""
    reason: str = "FieldValueForbidden"
    expression: str = ""

    def schema(self) -> dict[str, Any]:
        """The entry of x-kubernetes-validations."""
        entry = {"rule": self.rule, "message": self.message, "reason": self.reason}
        if self.field:
            entry["fieldPath"] = f".{self.field}"
        if self.expression:
            entry["messageExpression"] = self.expression
        return entry
