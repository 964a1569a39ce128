"""The common base of every configuration model: camelCase outside, snake_case inside, no typos."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

type PathText = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A path or a pattern of paths. No file system or log does well with control characters in one."""


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
