"""The weights of edges of a graph of neurons, as the net holds them."""

from collections.abc import Collection

import numpy as np
from jaxtyping import Int

from .nets import Dag


def trained_numbers(
    net: Dag, edges: Collection[tuple[int, int]], name: str
) -> Int[np.ndarray, " weights"]:
    """Which of the net's values are the weights of these edges, each once.

    Raises:
        ValueError: on edges that it does not have, constants, or only some of the edges
            that share a weight.
    """
    chosen = set(edges)
    if foreign := chosen - set(net.edges):
        raise ValueError(f"{name} has {min(foreign)}, which is no edge of the graph.")
    parameters = dict(zip(net.edges, net.parameters, strict=True))
    numbers = {parameters[edge] for edge in chosen}
    if -1 in numbers:
        raise ValueError(f"{name} contains constants, whose weights are not trained.")
    if torn := [e for e, p in parameters.items() if p in numbers and e not in chosen]:
        raise ValueError(
            f"{name} lacks the edge {torn[0]}, which shares its weight with one in it."
        )
    return np.asarray(sorted(numbers), int)
