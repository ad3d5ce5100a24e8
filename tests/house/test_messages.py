"""Wrong arguments: what is said names the argument, its value and the remedy."""

import functools
import inspect
import subprocess
import sys
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


def model_of(module: str) -> Any:
    """An instance of a user's class that is derived from one of another library."""
    base = type("Module", (), {"__module__": module})
    return type("Model", (base,), {})()


CASES = {
    "record-list": (
        lambda flow, net: solve(flow, net, record=["risk"]),
        r"record=\['risk'\] must be functions by name.*'risk': gf\.diagnostics\.risk",
    ),
    "records": (
        lambda flow, net: gf.solve(flow, net, t1=1.0, records={}),  # pyright: ignore
        "records={} is no argument of solve; did you mean record=",
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
    "key-array": (
        lambda flow, net: MLP([2, 3, 1], key=jnp.asarray(7)),
        r"key=.* must be a key of jax\.random, such as jax\.random\.key\(0\)",
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
    "torch": (
        lambda flow, net: solve(flow, model_of("torch.nn.modules.module")),
        r"net must be a network of gf\.nets, got Model; .*gf\.nets\.from_torch\(",
    ),
    "torch-wrapped": (
        lambda flow, net: gf.nets.wrap(model_of("torch.nn.modules.module")),
        r"model must be an equinox\.Module, got Model; .*gf\.nets\.from_torch\(",
    ),
    "flax": (
        lambda flow, net: descend(flow.problem, model_of("flax.linen.module"), 0.1, 2),
        r"got Model; .*from_weights\(\[kernel\.T.*gf\.nets\.wrap\(module\)",
    ),
    "haiku": (
        lambda flow, net: solve(flow, model_of("haiku._src.transform")),
        r"got Model; .*from_weights\(\[kernel\.T.*gf\.nets\.wrap\(module\)",
    ),
    "other-model": (
        lambda flow, net: solve(flow, model_of("mine")),
        r"got Model; build one with gf\.nets\.MLP\(widths, key=\.\.\.\)",
    ),
    "text-labels": (
        lambda flow, net: gf.Dataset(np.eye(2), ["cat", "dog"]),
        r"y is not array-like, it holds texts such as 'cat'.*np\.unique\(y, return_inv",
    ),
    "text-labels-one-hot": (
        lambda flow, net: gf.data.one_hot(np.array(["cat", "dog"])),
        r"labels is not array-like, it holds texts such as 'cat'.*np\.unique\(labels",
    ),
    "boolean-labels": (
        lambda flow, net: gf.Dataset(np.eye(2), [True, False]),
        r"y has dtype bool, must be real numbers: give y\.astype\(int\), 0 and 1",
    ),
    "misspelt": (
        lambda flow, net: descend(flow.problem, net, 0.1, 2, records={"a": word}),
        r"records=\{'a': .*\} is no argument of descend; did you mean record=\?",
    ),
    "unheard-of": (
        lambda flow, net: MLP([2, 3, 1], key=KEY, dropout=0.5),
        "dropout=0.5 is no argument of MLP; it takes widths, key, scale, activation",
    ),
    "use-bias": (
        lambda flow, net: MLP([2, 3, 1], key=KEY, use_bias=True),
        r"use_bias=True is no argument of MLP; .*gf\.nets\.dense\(width, bias=True\)",
    ),
    "bias": (
        lambda flow, net: MLP([2, 3, 1], key=KEY, bias=True),
        r"bias=True is no argument of MLP; .*gf\.nets\.dense\(width, bias=True\)",
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


def test_an_unknown_keyword_keeps_signature_and_name():
    """For help and editors, which show those of the function itself."""
    assert list(inspect.signature(gf.descend).parameters)[:3] == [
        "problem",
        "net",
        "optimizer",
    ]
    assert gf.descend.__name__ == "descend"


def test_lists_stand_for_arrays():
    """The same solve as of arrays, to the bit."""
    x, y, ts = [[1.0, 0.0], [0.0, 2.0]], [[1.0], [-1.0]], [0.0, 0.5, 1.0]
    weights = [[[1.0, 0.5]], [[0.5]]]

    def final(convert):
        data = gf.Dataset(convert(x), convert(y))
        net = gf.nets.MLP.from_weights([convert(w) for w in weights])
        flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared))
        return gf.solve(flow, net, ts=convert(ts), solver=gf.solvers.Adaptive()).final

    of_lists, of_arrays = final(lambda v: v), final(jnp.asarray)
    for p, q in zip(of_lists.weights, of_arrays.weights, strict=True):
        np.testing.assert_array_equal(p, q)


ROUNDED = """
import warnings
import jax, numpy as np, gfdyn as gf
jax.config.update("jax_enable_x64", {x64})
for _ in range(2):
    data = gf.Dataset(np.eye(2, dtype="{dtype}"), np.ones(2, "{dtype}"))
gf.data.digits(3)
gf.theory.le_jegelka.counterexample()
assert data.x.dtype == "{kept}", data.x.dtype
"""


@pytest.mark.parametrize(
    ("x64", "dtype", "kept"),
    [
        (False, "float64", "float32"),
        (False, "float32", "float32"),
        (True, "float64", "float64"),
    ],
)
def test_data_that_jax_rounds_are_warned_of_once(x64, dtype, kept):
    """By Python's own filter, at the line of the user."""
    code = ROUNDED.format(x64=x64, dtype=dtype, kept=kept)
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    if dtype == kept:
        assert not run.stderr
        return
    (line,) = [line for line in run.stderr.splitlines() if "Warning" in line]
    assert line.startswith("<string>:6: PrecisionWarning: x.dtype=float64 and y.dtype=")
    assert 'first call jax.config.update("jax_enable_x64", True), or give x.as' in line


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
