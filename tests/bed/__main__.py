"""Entry point of ``python3 tests/bed COMMAND``: puts the package on the path and hands over."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bed.cli import main  # noqa: E402 - importable only once the path is set

sys.exit(main(sys.argv[1:]))
