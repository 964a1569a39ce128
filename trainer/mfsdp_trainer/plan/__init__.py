"""How much memory and traffic a run needs under each engine and strategy: arithmetic alone.

Nothing here imports torch: the `mfsdp` command does the sums where no trainer is installed, from
the facts that `mfsdp_trainer.inspection` finds out about a model.
"""

from .choices import Choice, choices
from .facts import ModelFacts
from .memory import Memory, memory
from .traffic import Traffic, traffic

__all__ = ["Choice", "Memory", "ModelFacts", "Traffic", "choices", "memory", "traffic"]
