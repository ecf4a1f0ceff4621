"""Secure aggregation and differential privacy.

Secure aggregation is SecAgg (Bonawitz et al., 2017) without its recovery of dropouts. Every client adds to its numbers,
modulo 2^64, a self mask and one mask for each other client; of each pair one adds and the other subtracts, so that only
the self masks are left in the sum. Before that, each client shares the key of its self mask among all:
`mask_session.unmask_threshold` of them together can remove it. A sum that lacks a member cannot be unmasked, and all
sums of one kind in a run have the same members: the difference of two sums over different members would be a single
client's numbers (docs/decisions/0017-fixed-members.md).
"""

from ..errors import ConfigError


def require_cryptography() -> None:
    """Raise ConfigError before a run if the cryptography package is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ConfigError("the settings of privacy need more packages: pip install 'fedcopl[privacy]'") from error
