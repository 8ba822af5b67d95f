"""A part of a network that travels while the rest stays: a trunk under two heads, a head of the
server's own."""

from __future__ import annotations

import numpy as np
from torch import nn

from rayfl.arrays import Ints, Vector
from rayfl.learn.resident import Resident


def find_places(network: Resident, part: nn.Module) -> Ints:
    """Positions of a part's parameters and statistics in the flat vector of the whole, in the order
    in which they would lie in a vector of their own.

    Parameters
    ----------
    network
        `client.learner.shape_of()`.
    part
        A module inside it.
    """
    own = {id(tensor) for tensor in (*part.parameters(), *part.buffers())}
    spans = [home.span for home in network.homes if id(home.tensor) in own]
    pieces = [np.arange(span.start, span.stop) for span in spans]
    return np.concatenate([np.empty(0, dtype=np.int64), *pieces])


def put_part(w: Vector, places: Ints, part: Vector) -> Vector:
    """The whole with another part at these places.

    Parameters
    ----------
    w
        The whole, which stays as it is.
    places
        Where the part lies.
    part
        What is to lie there.
    """
    filled: Vector = w.copy()
    filled[places] = part
    return filled
