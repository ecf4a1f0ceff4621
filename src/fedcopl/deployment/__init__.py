"""A real federation on Flower: server, sites and their messages.

Only this package, `flower_app` and `simulation.on_flower` import Flower. By default Flower checks for updates, sends
telemetry and installs the dependencies of an app; the variables below disable this. They have to be set before Flower
is imported.
"""

import os

from .addresses import bypass_proxy_for_localhost

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray prints a warning at every start
}
os.environ.update(OFFLINE)
bypass_proxy_for_localhost()
