"""What holds for all unit tests."""

from hypothesis import settings

# Tests assert no times: an example that meets a busy machine, or a first import, is no failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
