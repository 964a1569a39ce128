"""The functional core: `decide` says what a job's status should be and what to do. It does nothing.

Level-triggered: it looks at what there is, never at what happened. Called twice with the same view
it says the same; killed between any two actions and called again, it goes on from there.
"""

from .decide import decide
from .state import Decision, Memory, Observed, Policy

__all__ = ["Decision", "Memory", "Observed", "Policy", "decide"]
