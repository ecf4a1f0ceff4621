"""The same federation on Flower: a server, sites, the wire between.

Flower is imported below this package, by `flower_app` and by `simulation.on_flower`, and nowhere else. It asks its own
servers whether there is a newer version, tells them that it was started, and installs what an app names; here none of
this happens, and the switches have to be set before Flower is imported.
"""

import os

from .wire.proxies import spare_this_machine

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray speaks of it at every start
}
os.environ.update(OFFLINE)
spare_this_machine()
