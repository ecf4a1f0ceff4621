"""Settings for all tests."""

from hypothesis import settings

# These machines are shared and noisy: a deadline would fail for want of a core, not for a fault.
settings.register_profile("fedcopl", deadline=None, max_examples=40)
settings.load_profile("fedcopl")
