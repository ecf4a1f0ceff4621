"""The folder of a site or server: keys and certificates that have expired or expire soon."""

from collections.abc import Iterator
from pathlib import Path

from ..errors import FedCoPLError
from .findings import Finding, note, ok, problem

CERTIFICATE = "ca.pem"  # in every such folder, and in no folder of settings


def is_federation_folder(where: Path) -> bool:
    return (where / CERTIFICATE).is_file()


def check_endings(folder: Path) -> Iterator[Finding]:
    """Report when keys and certificates expire, and what to do."""
    from ..deployment.provisioning.expiry import expiries, today_utc

    today = today_utc()
    try:
        endings = list(expiries(folder))
    except FedCoPLError as error:
        yield problem("keys and certificates", str(error), "fix or replace the file named above")
        return
    for ending in endings:
        when = ending.text(today)
        if ending.days_left(today) < 0:
            yield problem(ending.what, when, ending.renewal)
        else:
            yield note(ending.what, when, ending.renewal) if ending.is_near(today) else ok(ending.what, when)
