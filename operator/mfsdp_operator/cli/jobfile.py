"""Jobs in YAML files, checked as the API server and the operator would, each problem with its line.

A file may hold other objects beside jobs (a PersistentVolumeClaim, say): they are passed over.
"""

import difflib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mfsdp_operator.api.job import Job, parse_job
from mfsdp_operator.api.names import GROUP, KIND
from mfsdp_operator.api.problems import InvalidSpecError, Problem, problem
from mfsdp_operator.api.resolve import ResolvedJob, resolve, spec_problems
from mfsdp_operator.builders.overlay import overlay_problems
from mfsdp_trainer.config.plain import not_finite
from mfsdp_trainer.config.yaml12 import Document, YamlError, parse_all

from .errors import UserError

_TOP: Final = ("apiVersion", "kind", "metadata", "spec", "status")
_TOP_SHOWN: Final = ", ".join(_TOP)


@dataclass(frozen=True)
class JobFile:
    """A job in a file, not checked yet."""

    file: str
    document: Document

    @property
    def name(self) -> str:
        """metadata.name, or an empty text."""
        metadata = self.document.value.get("metadata")
        return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""

    def check(self) -> tuple[Job, ResolvedJob]:
        """The job and what it resolves to. Raises UserError: FILE:LINE and problem, a line each."""
        try:
            if problems := tuple(_file_problems(self.document.value)):
                raise InvalidSpecError(problems)
            # Its status is the API server's, which ignores what a file says of it.
            job = parse_job({**self.document.value, "status": None})
            if problems := (*spec_problems(job.spec), *overlay_problems(job.spec)):
                raise InvalidSpecError(problems)
            return job, resolve(job.spec)
        except InvalidSpecError as error:
            lines = sorted((self._line(found), str(found)) for found in error.details)
            text = "\n".join(f"{self.file}:{line}: {problem}" for line, problem in lines)
            raise UserError(text) from None

    def _line(self, found: Problem) -> int:
        return self.document.line(found.path) or 1


def read_jobs(file: str) -> list[JobFile]:
    """All jobs of a file; `-` is standard input. Raises UserError if it cannot be read."""
    name = "<stdin>" if file == "-" else file
    return [JobFile(name, document) for document in _documents(file, name) if _is_job(document)]


def read_job(file: str, name: str | None) -> JobFile:
    """The job of a file, by name if it has several. Raises UserError."""
    jobs = read_jobs(file)
    if not jobs:
        raise UserError(f"{file}: holds no {KIND}")
    chosen = [job for job in jobs if name in (None, job.name)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(job.name or "(without a name)" for job in jobs)
    if not chosen:
        raise UserError(f"{jobs[0].file}: has no job {name}, but {names}")
    raise UserError(f"{jobs[0].file}: has several jobs; choose one with --name: {names}")


def _documents(file: str, name: str) -> list[Document]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        return list(_not_empty(parse_all(text)))
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not UTF-8 text: {error.reason}") from None
    except YamlError as error:
        raise UserError(f"{name}:{error.line or 1}: {error}") from None


def _file_problems(manifest: dict[str, Any]) -> Iterator[Problem]:
    """What kubectl refuses before it looks at the schema of a job."""
    for key in manifest:
        if key not in _TOP:
            near = difflib.get_close_matches(key.lower(), _TOP, 1)
            hint = f"did you mean {near[0]}?" if near else f"remove it, or use one of {_TOP_SHOWN}"
            yield problem(key, f"is not a field: {hint}")
    if (path := not_finite(manifest)) is not None:
        yield Problem(path, "must be a finite number")


def _not_empty(documents: list[Document]) -> Iterator[Document]:
    return (document for document in documents if document.value is not None)


def _is_job(document: Document) -> bool:
    """Whether a document is a job, or was meant as one: a misspelt kind must not pass unseen."""
    if not isinstance(document.value, dict):
        return False
    group = str(document.value.get("apiVersion")).partition("/")[0]
    return document.value.get("kind") == KIND or group == GROUP
