"""Secure aggregation and differential privacy.

Secure aggregation is SecAgg (Bonawitz et al., 2017), which survives dropouts. Every client adds to its numbers, modulo
2^64, a mask of its own and one for each other client; of each pair one adds and the other subtracts, so that only the
own masks are left in the sum. Before that, each client shares its keys among all: `mask_session.needed` of them
together can reveal the own mask of a client whose vector arrived, or the pairwise masks of one that dropped out. Never
both, which would reveal its numbers.
"""

from ..errors import ConfigError


def require_cryptography() -> None:
    """Raise ConfigError before a run if the cryptography package is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ConfigError("the settings of privacy need more packages: pip install 'fedcopl[privacy]'") from error
