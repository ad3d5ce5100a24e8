"""Models of one's own with a forward pass against gates, and what jit and vmap leave of
what is known of a model.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gfdyn as gf


KEY = jax.random.key(0)


class Own(eqx.Module):
    """A model written against gates."""

    first: jax.Array
    last: jax.Array

    @property
    def activations(self) -> tuple[gf.nets.PiecewiseLinear, ...]:
        return (gf.nets.relu(),)

    def forward(self, x: jax.Array, gates: Sequence) -> tuple:
        z = x @ self.first.T
        return gates[0](z) @ self.last.T, (z,)


def test_a_model_written_against_gates_has_exact_kinks():
    mlp = gf.nets.MLP([3, 5, 2], key=KEY)
    own = gf.nets.wrap(Own(*mlp.weights))
    data = gf.data.teacher(10, [3, 4, 2], key=jax.random.key(4))
    assert (own.in_size, own.out_size, own.degree) == (3, 2, 2)
    assert own.knows_kinks and own.parameter_names == ("first", "last")
    values = tuple(gate.value for gate in mlp.frozen_gates(data.x))
    pairs = own.gradient_norms(data.x, values), mlp.gradient_norms(data.x, values)
    for ours, theirs in zip(*pairs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13)
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared))
    ends = [gf.solve(flow, net, t1=3.0) for net in (own, mlp)]
    assert ends[0].stats["num_crossings"] == ends[1].stats["num_crossings"] > 0
    gaps = [a - b for a, b in zip(*(jax.tree.leaves(e.final) for e in ends), strict=True)]
    assert max(float(jnp.abs(gap).max()) for gap in gaps) <= 1e-10


class Forward(eqx.Module):
    """The forward pass of any number of layers, and nothing else."""

    matrices: tuple[jax.Array, ...]

    def forward(self, x: jax.Array, gates: Sequence) -> tuple:
        hidden = []
        for matrix, gate in zip(self.matrices[:-1], gates, strict=False):
            hidden.append(x @ matrix.T)
            x = gate(hidden[-1])
        return x @ self.matrices[-1].T, tuple(hidden)


class Counting(Forward):
    """It takes one gate only, and has two arrays."""

    def forward(self, x: jax.Array, gates: Sequence) -> tuple:
        assert len(gates) == 1
        return x, ()


@pytest.mark.slow
def test_a_forward_pass_alone_has_the_kinks_of_relu():
    mlp = gf.nets.MLP([3, 4, 4, 2], key=KEY, scale=0.5)
    own = gf.nets.wrap(Forward(mlp.weights))
    assert isinstance(own, gf.nets.Wrapped) and own.reason is None
    assert own.activations == mlp.activations
    assert (own.in_size, own.out_size, own.degree) == (3, 2, 3)
    data = gf.data.teacher(10, [3, 4, 2], key=jax.random.key(4))
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared))
    ends = [gf.solve(flow, net, t1=1.0, ts=[1.0]) for net in (own, mlp)]
    assert ends[0].stats["num_crossings"] == ends[1].stats["num_crossings"] > 0
    np.testing.assert_allclose(ends[0].final_risk, ends[1].final_risk, rtol=1e-10)


def test_who_counts_gates_is_asked_for_activations():
    with pytest.raises(ValueError, match="one for each of its `activations`, all ReLU if"):
        gf.nets.wrap(Counting(gf.nets.MLP([3, 4, 2], key=KEY).weights))


class Named(eqx.Module):
    """Its attribute of that name is its own affair, as it has no forward pass of gates."""

    w: jax.Array
    activations: int = eqx.field(default=1, static=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(self.w @ x)


def test_a_model_that_is_called_may_have_what_it_likes():
    own = gf.nets.wrap(Named(jnp.ones((2, 3))))
    assert own.activations == () and not own.knows_kinks


# --- Under jit and vmap ----------------------------------------------------------------


class Squares(eqx.Module):
    """v relu(W x)², of degree 3."""

    w: jax.Array
    v: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.v @ jax.nn.relu(self.w @ x) ** 2


def stack(key: jax.Array) -> eqx.Module:
    return eqx.nn.MLP(3, 1, 4, 1, use_bias=False, use_final_bias=False, key=key)


def squares(key: jax.Array) -> eqx.Module:
    return Squares(jax.random.normal(key, (4, 3)), jnp.ones((1, 4)))


@pytest.mark.parametrize("model, degree", [(stack, 2), (squares, 3)])
@pytest.mark.parametrize("traced", [jax.jit, jax.vmap, jax.grad])
def test_what_is_known_of_a_model_is_known_where_it_is_traced(model, degree, traced):
    kind = type(gf.nets.wrap(model(KEY)))
    looked = []

    def look(scale: jax.Array) -> jax.Array:
        drawn = jax.tree.map(
            lambda w: scale * w if eqx.is_inexact_array(w) else w, model(KEY)
        )
        looked.append(gf.nets.wrap(drawn))
        return jnp.sum(looked[-1](jnp.ones((1, 3))))

    traced(look)(jnp.ones(2) if traced is jax.vmap else jnp.ones(()))
    assert all(type(net) is kind and net.degree == degree for net in looked) and looked
