"""Flower's SuperNode, with shorter waits: `python -m fedcopl.deployment.flower_internals.supernode PARENT ARGUMENTS...`

SuperNode looks for a question every three seconds and says every thirty that it is alive, SuperLink lets a node that
was killed in again only after sixty, and one that lost its server waits for up to twenty before it tries again. A
federation asks several questions a round, one after the other: half a second, ten seconds, which is the least that
SuperLink accepts, and five suit it better. Flower has no switches for them.
"""

import sys
import time
from types import SimpleNamespace

from flwr.supercore import heartbeat
from flwr.supercore.retry import http_retry
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli import flower_supernode

from ..processes import end_with_parent
from . import HEARTBEAT

LONGEST_SLEEP = 0.5
LONGEST_BACKOFF = 5


def patch_supernode() -> None:
    """Shorten the waits of a SuperNode that is about to start."""
    for module in (heartbeat, fleet_http_connection):
        setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT)  # noqa: B010
    setattr(http_retry, "MAX_RETRY_DELAY", LONGEST_BACKOFF)  # noqa: B010
    clock = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, LONGEST_SLEEP)))
    setattr(start_client_internal, "time", clock)  # noqa: B010


def main() -> None:
    end_with_parent(int(sys.argv.pop(1)))
    patch_supernode()
    flower_supernode()


if __name__ == "__main__":
    main()
