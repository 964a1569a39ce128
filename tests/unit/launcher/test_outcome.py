"""The one reason out of all evidence: causes before echoes, words before guesses."""

import json
import signal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsdp_trainer.contract import OUTCOME_MAX_BYTES, Outcome, Reason
from mfsdp_trainer.launcher.outcome import Evidence, decide, encode, redact
from mfsdp_trainer.launcher.stop import Stop
from mfsdp_trainer.reporting import WorkerOutcome

KILLED, ABORTED, TERMINATED = -signal.SIGKILL, -signal.SIGABRT, -signal.SIGTERM


def said(rank: int, reason: Reason, message: str = "", *, lost: bool = False) -> WorkerOutcome:
    outcome = Outcome(reason=reason, message=message, rank=rank)
    return WorkerOutcome(outcome=outcome, at=0.0, peer_lost=lost)


def evidence(*outcomes: WorkerOutcome, **more: Any) -> Evidence:
    return Evidence(ranks=(0, 1), outcomes=outcomes, **more)


DONE = [said(0, Reason.DONE), said(1, Reason.DONE)]
ECHO = said(0, Reason.CRASH, "RuntimeError: Connection closed by peer", lost=True)
CRASH = said(0, Reason.CRASH, "KeyError: 'x'")
DATA = said(1, Reason.DATA_ERROR, "no such file")
TIMEOUT = said(1, Reason.COLLECTIVE_TIMEOUT, "Timed out waiting 1000ms")
PREEMPTED = said(0, Reason.PREEMPTED)


@pytest.mark.parametrize(
    ("given_evidence", "reason", "text"),
    [
        (evidence(*DONE), Reason.DONE, ""),
        (evidence(*DONE, exit_codes=((0, -11),)), Reason.DONE, ""),
        (evidence(*DONE, stop=Stop.ASKED), Reason.DONE, ""),
        (evidence(DONE[0]), Reason.CRASH, "ranks [1] ended without saying how"),
        (evidence(CRASH, DATA), Reason.DATA_ERROR, "no such file"),
        (
            evidence(ECHO, exit_codes=((1, KILLED), (0, 87))),
            Reason.CRASH,
            "rank 1 was ended by SIGKILL",
        ),
        (
            evidence(ECHO, exit_codes=((1, KILLED),), memory_killed=True, memory_limit=2**30),
            Reason.OUT_OF_MEMORY,
            "limit of 1,024 MiB",
        ),
        (
            evidence(CRASH, exit_codes=((1, KILLED),), memory_killed=True),
            Reason.OUT_OF_MEMORY,
            "rank 1",
        ),
        (evidence(DATA, exit_codes=((0, KILLED),), memory_killed=True), Reason.DATA_ERROR, ""),
        (
            evidence(exit_codes=((1, ABORTED),), collective_stuck=frozenset({1})),
            Reason.COLLECTIVE_TIMEOUT,
            "NCCL",
        ),
        (evidence(exit_codes=((1, ABORTED),)), Reason.CRASH, "SIGABRT"),
        (evidence(TIMEOUT, CRASH), Reason.CRASH, "KeyError"),
        (evidence(TIMEOUT, ECHO), Reason.COLLECTIVE_TIMEOUT, ""),
        (evidence(ECHO), Reason.CRASH, "lost connection to a peer rank"),
        (evidence(ECHO, PREEMPTED), Reason.PREEMPTED, ""),
        (
            evidence(PREEMPTED, exit_codes=((0, 86), (1, TERMINATED)), stop=Stop.ASKED),
            Reason.PREEMPTED,
            "",
        ),
        (evidence(PREEMPTED, said(1, Reason.CHECKPOINT_ERROR)), Reason.CHECKPOINT_ERROR, ""),
        (evidence(PREEMPTED, stop=Stop.KILLED), Reason.PREEMPTED, ""),
        (
            evidence(ECHO, exit_codes=((1, KILLED),), stop=Stop.KILLED, stop_cause="late"),
            Reason.CRASH,
            "killed before a checkpoint: late",
        ),
        (
            evidence(exit_codes=((0, KILLED), (1, KILLED)), stop=Stop.EARLY),
            Reason.PREEMPTED,
            "nothing to save",
        ),
        (
            evidence(exit_codes=((0, KILLED),), hang="rank 0 is stuck"),
            Reason.HANG,
            "rank 0 is stuck",
        ),
        (
            evidence(exit_codes=((0, 3), (1, TERMINATED))),
            Reason.CRASH,
            "rank 0 ended with exit code 3",
        ),
        (
            evidence(exit_codes=((0, TERMINATED), (1, TERMINATED))),
            Reason.CRASH,
            "rank 0 was ended by SIGTERM",
        ),
    ],
)
def test_decide(given_evidence: Evidence, reason: Reason, text: str) -> None:
    outcome = decide(given_evidence)
    assert outcome.reason is reason
    assert text in outcome.message


def test_the_newest_step_is_told_where_the_rank_did_not() -> None:
    assert decide(evidence(*DONE, step=12)).step == 12


@settings(deadline=None)
@given(st.text(max_size=2048), st.sampled_from(Reason))
def test_the_message_fits_whatever_is_in_it(text: str, reason: Reason) -> None:
    outcome = decide(evidence(said(0, reason, text)))
    encoded = encode(outcome).encode()
    assert len(encoded) <= OUTCOME_MAX_BYTES
    assert json.loads(encoded)["reason"] == outcome.reason
    assert Outcome.model_validate_json(encoded).tag == "mfsdp.dev/outcome"


@pytest.mark.parametrize("filler", ["x", "€", "🐍", '"', "\\"])
def test_long_messages_are_cut_and_not_dropped(filler: str) -> None:
    text = encode(Outcome(reason=Reason.CRASH, message=filler * 2048))
    assert 1900 < len(text.encode()) <= OUTCOME_MAX_BYTES


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://me:hunter2@host/x", "https://[redacted]@host/x"),
        ("password=hunter2 next", "password=[redacted] next"),
        ("{'api_key': 'abc123'}", "{'api_key': '[redacted]'}"),
        ("HF_TOKEN=abcdef", "HF_TOKEN=[redacted]"),
        ("access_token: abcdef", "access_token: [redacted]"),
        ("Authorization: Bearer abcdefghij", "Authorization: [redacted] [redacted]"),
        ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=[redacted]"),
        ("see hf_abcdefghijklmnopqrst here", "see [redacted] here"),
        ("eos_token: '</s>' unknown", "eos_token: '</s>' unknown"),
        ("tokenizer.path: /no/such", "tokenizer.path: /no/such"),
        ("3 tokens = 5", "3 tokens = 5"),
        ("unexpected token: }", "unexpected token: }"),
    ],
)
def test_redact(text: str, clean: str) -> None:
    assert redact(text) == clean
