"""What a client lets out: masked sums, noise, and the account of it.

Masks cancel in the sum, also when clients get lost (Bonawitz et al. 2017).

Every client adds to its numbers, modulo 2^64, a mask of its own and one for each other client; of each pair one adds
and the other subtracts, so that in the sum of all only the own masks are left. Before, each has shared out the secrets
behind its masks among all: enough of them together (`threshold.needed`) can give out the own mask of a client whose
numbers came, or the pairwise masks of one whose numbers did not come. Never both: that would lay its numbers bare.
"""

from ..errors import ConfigError


def require_cryptography() -> None:
    """Say what to install, before a run has begun."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ConfigError("the settings of privacy need more packages: pip install 'fedcopl[privacy]'") from error
