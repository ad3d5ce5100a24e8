"""Wrong arguments: what is said names the argument, its value and the remedy."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gfdyn as gf


# Called with what they refuse.
solve: Any = functools.partial(gf.solve, t1=1.0)
descend: Any = gf.descend
MLP: Any = gf.nets.MLP
KEY = jax.random.key(0)


def setting():
    problem = gf.Problem(gf.data.xor(), gf.losses.squared)
    return gf.GradientFlow(problem), gf.nets.MLP([2, 3, 1], key=KEY)


def word(problem, net):
    return "word"


CASES = {
    "record-list": (
        lambda flow, net: solve(flow, net, record=["risk"]),
        r"record=\['risk'\] must be functions by name.*'risk': gf\.diagnostics\.risk",
    ),
    "record-number": (
        lambda flow, net: descend(flow.problem, net, 0.1, 2, record=3),
        "record=3 must be functions by name",
    ),
    "record-word": (
        lambda flow, net: solve(flow, net, record={"a": word}),
        "word.*returned 'word'; a record is a function.*returns arrays",
    ),
    "stop": (
        lambda flow, net: solve(flow, net, stop=word),
        r"stop holds <function word.*gf\.stopping\.When\(function\)",
    ),
    "t1-word": (
        lambda flow, net: solve(flow, net, t1="soon"),
        "t1='soon' must be a number",
    ),
    "t1-nan": (
        lambda flow, net: solve(flow, net, t1=float("nan")),
        "t1=nan must be a time that does not lie before t0=0.0",
    ),
    "dt0-zero": (
        lambda flow, net: solve(flow, net, dt0=0.0),
        "dt0=0.0 must be positive and finite, or None",
    ),
    "dt0-nan": (
        lambda flow, net: solve(flow, net, dt0=float("nan")),
        "dt0=nan must be positive and finite",
    ),
    "rtol": (
        lambda flow, net: gf.solvers.ExactKinks(rtol=0.0),
        "rtol=0.0 must be positive and finite, such as 1e-6",
    ),
    "key-number": (
        lambda flow, net: MLP([2, 3, 1], key=7),
        r"key=7 must be a key of jax\.random, such as jax\.random\.key\(7\)",
    ),
    "key-numpy": (
        lambda flow, net: gf.nets.sequential(
            2,
            [gf.nets.dense(1, "identity")],
            key=np.random.default_rng(0),  # pyright: ignore[reportArgumentType]
        ),
        r"key=Generator.*such as jax\.random\.key\(0\)",
    ),
    "activation": (
        lambda flow, net: MLP([2, 3, 1], key=KEY, activation=jax.nn.relu),
        r"activation=.*is unknown; use 'relu'.*gf\.nets\.wrap",
    ),
    "steps": (
        lambda flow, net: descend(flow.problem, net, 0.1, 1e2),
        "steps=100.0 must be a whole number, such as 100",
    ),
    "optimizer": (
        lambda flow, net: descend(flow.problem, net, "adam", 10),
        "optimizer='adam' is no learning rate.*optax optimizer",
    ),
    "zero": (
        lambda flow, net: solve(
            gf.EscapeFlow(flow.problem), jax.tree.map(jnp.zeros_like, net)
        ),
        "net has norm 0.0, and so no direction in which to escape",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_message(name, unhooked):
    call, message = CASES[name]
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        call(*setting())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [0.0, 1e-310])
@pytest.mark.parametrize("solver", [gf.solvers.ExactKinks(), gf.solvers.Adaptive()])
def test_a_net_at_rest_stays_there(size, solver):
    """All gates are off at θ = 0, with nothing to move it."""
    flow, net = setting()
    net = jax.tree.map(lambda w: size * jnp.sign(w), net)
    traj = gf.solve(flow, net, t1=3.0, solver=solver)
    assert traj.final_time == 3.0 and traj.certificate.holds
    assert traj.final_risk == flow.problem.risk(net)
    assert all(np.isfinite(w).all() for w in traj.net.weights)
    assert "risk" in traj.summary()
