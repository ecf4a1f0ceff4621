"""Settings for all tests."""

import os

from hypothesis import settings

# Tests run one process per core; a second thread in each would only wait for the others. Before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# These machines are shared and noisy: a deadline would fail for want of a core, not for a fault.
settings.register_profile("fedcopl", deadline=None, max_examples=40)
settings.load_profile("fedcopl")
