"""Models of other libraries: how they become networks of gfdyn."""

from typing import Any

from ._base import AbstractNet


_FUNCTIONAL = (
    "take the matrices of a stack of layers, gf.nets.MLP.from_weights([kernel.T, ...]); or "
    "write an equinox.Module whose fields are the parameters and whose __call__(x) applies "
    "the model to them: gf.nets.wrap(module)."
)
# By the package that a class, or one above it, is from.
_REMEDIES = {
    "torch": (
        "take the arrays of a stack of linear layers, gf.nets.from_torch({name: "
        "tensor.detach().numpy() for name, tensor in model.state_dict().items()})."
    ),
    "flax": _FUNCTIONAL,
    "haiku": _FUNCTIONAL,
}
_ANY = (
    "build one with gf.nets.MLP(widths, key=...) or gf.nets.MLP.from_weights([...]), or "
    "wrap an Equinox module: gf.nets.wrap(model)."
)


def remedy_for(model: Any) -> str:
    """How the model becomes a network: told by its class, whose library is not imported."""
    packages = [base.__module__.partition(".")[0] for base in type(model).__mro__]
    return next((_REMEDIES[name] for name in packages if name in _REMEDIES), _ANY)


def check_net(net: Any) -> None:
    """Raise unless it is a network.

    Raises:
        TypeError: saying how it becomes one.
    """
    if not isinstance(net, AbstractNet):
        raise TypeError(
            f"net must be a network of gf.nets, got {type(net).__name__}; {remedy_for(net)}"
        )
