"""The one exception that `mfsdp` shows to its user as it is."""


class UserError(Exception):
    """Something that the user can put right: a line for each problem, each with its fix."""
