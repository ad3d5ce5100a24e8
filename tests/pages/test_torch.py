"""What pages say to PyTorch, run by PyTorch, and its networks; where it is installed."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from code_blocks import blocks

import gfdyn as gf


torch: Any = pytest.importorskip("torch", reason="PyTorch is not among what gfdyn needs")


@pytest.fixture(autouse=True)
def double_precision():
    """PyTorch's default is single precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def said_on(page: str, **names: Any) -> dict[str, Any]:
    """What the names are once PyTorch has done what a page says, in its one block that is
    of no language: the others are run as gfdyn's."""
    (block,) = blocks(page, "")
    exec(block, names)
    return names


def brought(model: Any, **options: Any) -> gf.nets.AbstractNet:
    """A model, by the way that the page shows."""
    arrays = said_on("howto/torch.md", model=model)["arrays"]
    return gf.nets.from_torch(arrays, **options)


def outputs_of(model: Any, x: np.ndarray) -> np.ndarray:
    return model(torch.from_numpy(x)).detach().numpy()


def test_training_loop_is_the_descent_beside_it():
    problem = gf.Problem(gf.data.xor(), gf.losses.squared)
    x, y = (torch.from_numpy(np.array(a)) for a in (problem.data.x, problem.data.y))
    torch.manual_seed(0)
    linear = torch.nn.Linear
    untrained = torch.nn.Sequential(
        linear(2, 8, bias=False), torch.nn.ReLU(), linear(8, 1, bias=False)
    )
    torch.manual_seed(0)
    trained = said_on("from_descent.md", torch=torch, x=x, y=y)["model"]
    final = gf.descend(problem, brought(untrained), 1e-3, 5000).final
    for ours, theirs in zip(final.weights, trained.parameters(), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-10, atol=1e-12)


def test_linear_layers():
    layers = torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
    model = torch.nn.Sequential(*layers)
    x = np.random.default_rng(0).normal(size=(5, 3))
    ours = brought(model)(jnp.asarray(x))
    np.testing.assert_allclose(ours, outputs_of(model, x), rtol=1e-12, atol=1e-12)


def test_convolutions():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, (3, 2), stride=2, padding=(1, 0)),
        torch.nn.ReLU(),
        torch.nn.Conv2d(4, 5, (2, 3), padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(50, 2),
    )
    images = np.random.default_rng(0).normal(size=(4, 3, 8, 5))
    net = brought(model, in_shape=(3, 8, 5), strides=[2, 1], padding=[(1, 0), 1])
    ours = net(jnp.asarray(images.reshape(4, -1)))
    np.testing.assert_allclose(ours, outputs_of(model, images), rtol=1e-12, atol=1e-12)
