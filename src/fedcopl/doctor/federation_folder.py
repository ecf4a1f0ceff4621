"""The folder of a site or a server: whether a key or a certificate has ended, or will soon."""

from collections.abc import Iterator
from pathlib import Path

from ..errors import FedCoPLError
from .findings import Finding, note, ok, problem

CERTIFICATE = "ca.pem"  # every such folder has it, and no folder of settings does


def is_federation_folder(where: Path) -> bool:
    return (where / CERTIFICATE).is_file()


def check_endings(folder: Path) -> Iterator[Finding]:
    """What ends, when, and what to do in time."""
    from ..deployment.provisioning.expiry import expiries, today_utc

    today = today_utc()
    try:
        endings = list(expiries(folder))
    except FedCoPLError as error:
        yield problem("keys and certificates", str(error), "mend or replace the file it names")
        return
    for ending in endings:
        when = ending.text(today)
        if ending.days_left(today) < 0:
            yield problem(ending.what, when, ending.renewal)
        else:
            yield note(ending.what, when, ending.renewal) if ending.is_near(today) else ok(ending.what, when)
