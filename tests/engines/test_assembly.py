"""Who is called what, and who holds what."""

import numpy as np

from fedcopl.core.partition import Partition
from fedcopl.data.digits import load_digits
from fedcopl.engines.assembly import client_names


def parts_of(count):
    nothing = tuple(np.zeros(0, np.int64) for _ in range(count))
    return Partition(nothing, nothing)


def test_names_of_clients_sort_as_they_count():
    assert client_names(load_digits(), parts_of(3)) == ["client-0", "client-1", "client-2"]
    names = client_names(load_digits(), parts_of(11))
    assert names == sorted(names)
    assert names[-1] == "client-10"
