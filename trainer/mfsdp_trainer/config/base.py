"""The common base of every configuration model: camelCase outside, snake_case inside, no typos."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ConfigModel(BaseModel):
    """A frozen model whose attribute docstrings become the descriptions in `kubectl explain`.

    Unknown keys are errors: a misspelt field must never become a silent default.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )
