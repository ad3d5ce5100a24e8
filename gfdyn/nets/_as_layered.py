"""Networks of one matrix a layer as layers along a graph."""

from ._activation import identity
from ._base import AbstractNet
from ._connections import Dense
from ._layered import Layer, LayeredNet
from ._mlp import MLP


def as_layered(net: AbstractNet) -> LayeredNet:
    """The same network as a `LayeredNet`, with the same arrays.

    Args:
        net: an MLP or a LayeredNet.

    Raises:
        TypeError: if the net is of another kind.
    """
    if isinstance(net, LayeredNet):
        return net
    if not isinstance(net, MLP):
        raise TypeError(
            f"net must be a gf.nets.MLP or LayeredNet, got {type(net).__name__}; build it "
            "with gf.nets.sequential."
        )
    sigmas = (*net.activations, identity())
    layers = [
        Layer((Dense(w),), None, (i,), sigma, (w.shape[0],))
        for i, (w, sigma) in enumerate(zip(net.matrices, sigmas, strict=True))
    ]
    return LayeredNet((net.in_size,), layers)
