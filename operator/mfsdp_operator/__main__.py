"""`python -m mfsdp_operator`: the operator."""

from .main import main

main()
