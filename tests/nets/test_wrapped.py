"""Networks of one's own: wrapped Equinox modules, PyTorch's layers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from fixtures import Calls, distance

import gfdyn as gf


KEY = jax.random.key(0)


class Quadratic(eqx.Module):
    """v (W x)², of degree 3, one sample at a time."""

    w: jax.Array
    v: jax.Array
    name: str = "quadratic"

    def __call__(self, x):
        return self.v @ (self.w @ x) ** 2


class Rows(eqx.Module):
    """tanh(x W + b), rows at once; a scalar for each."""

    w: jax.Array
    b: jax.Array

    def __call__(self, x):
        assert x.ndim == 2
        return jnp.sum(jnp.tanh(x @ self.w + self.b[None]), axis=1)


def quadratic():
    w, v = jax.random.normal(KEY, (4, 3)), 0.1 * jnp.ones((2, 4))
    return Quadratic(w, v)


def leaky(z):
    return jax.nn.leaky_relu(z, 0.1)


linear = eqx.nn.Linear
KNOWN = {
    "linear": (lambda: linear(3, 2, use_bias=False, key=KEY), gf.nets.MLP),
    "mlp": (
        lambda: eqx.nn.MLP(
            3, 2, 5, 2, use_bias=False, use_final_bias=False, activation=leaky, key=KEY
        ),
        gf.nets.MLP,
    ),
    "mlp-biases": (lambda: eqx.nn.MLP(3, 2, 5, 3, key=KEY), gf.nets.LayeredNet),
    "sequential": (
        lambda: eqx.nn.Sequential(
            [
                linear(3, 4, key=KEY),
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.Sequential([linear(4, 4, key=KEY), eqx.nn.Lambda(leaky)]),
                linear(4, 3, use_bias=False, key=KEY),
                linear(3, 2, key=KEY),
            ]
        ),
        gf.nets.LayeredNet,
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_stacks_of_linear_layers_become_nets_with_kinks(name):
    build, kind = KNOWN[name]
    model, x = build(), jax.random.normal(jax.random.key(1), (6, 3))
    net = gf.nets.wrap(model)
    assert type(net) is kind and (net.in_size, net.out_size) == (3, 2)
    np.testing.assert_allclose(net(x), jax.vmap(model)(x), rtol=1e-13, atol=1e-15)
    if name != "linear":
        assert net.has_kinks and len(net.conserved()) == len(net.activations)
    slopes = [sigma.slope for sigma in net.activations]
    assert (
        slopes
        == {
            "linear": [],
            "mlp": [0.1, 0.1],
            "mlp-biases": [0.0] * 3,
            "sequential": [0.0, 0.1, 1.0],
        }[name]
    )


def relu_squared(z):
    return jax.nn.relu(z) ** 2


def cubed_relu(z):
    return jax.nn.relu(z) ** 3


# Each with the degree of v σ(W x), if it has one.
OTHERS = {
    "tanh": (jnp.tanh, None),
    "gelu": (jax.nn.gelu, None),
    "softplus": (jax.nn.softplus, None),
    "elu": (jax.nn.elu, None),
    "relu6": (jax.nn.relu6, None),
    "square": (jnp.square, 3),
    "relu_squared": (relu_squared, 3),
    "cubed_relu": (cubed_relu, 4),
}
others = pytest.mark.parametrize("name", OTHERS)


@others
@pytest.mark.parametrize("biases", [False, True])
def test_other_activations_are_taken_as_they_are_by_name(name, biases):
    activation, degree = OTHERS[name]
    model = eqx.nn.MLP(
        3, 2, 5, 1, use_bias=biases, use_final_bias=biases, activation=activation, key=KEY
    )
    net = gf.nets.wrap(model)
    assert isinstance(net, gf.nets.Wrapped) and not net.knows_kinks
    assert net.reason == f"{name} is neither linear nor a (leaky) ReLU"
    x = jax.random.normal(KEY, (6, 3))
    np.testing.assert_array_equal(net(x), jax.vmap(model)(x))
    assert net.parameter_names[0] == "layers.0.weight" and net.conserved() == ()
    assert net.degree == (None if biases else degree)


@others
def test_flow_of_other_activations_against_descent(name):
    activation, _ = OTHERS[name]
    net = gf.nets.wrap(eqx.nn.MLP(3, 2, 5, 1, activation=activation, key=KEY))
    problem = gf.Problem(gf.data.teacher(8, [3, 4, 2], key=KEY), gf.losses.squared)
    trajectory = gf.solve(gf.GradientFlow(problem), net, t1=0.5)
    assert trajectory.certificate.holds
    # Of first order: half the step, half the difference.
    coarse, fine = (
        distance(gf.descend(problem, net, step, round(0.5 / step)).final, trajectory.final)
        for step in (2e-3, 1e-3)
    )
    assert 0 < fine < 5e-3 and 0.4 < fine / coarse < 0.6


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_degrees_of_equinox_mlps(depth):
    """The number of matrices; with a bias there is none, and no escape."""
    problem = gf.Problem(gf.data.teacher(8, [3, 4, 2], key=KEY), gf.losses.squared)
    nets = [
        gf.nets.wrap(
            eqx.nn.MLP(3, 2, 5, depth, use_bias=bias, use_final_bias=bias, key=KEY)
        )
        for bias in (False, True)
    ]
    assert [net.degree for net in nets] == [depth + 1, None]
    gf.EscapeFlow(problem).check(nets[0])
    with pytest.raises(ValueError, match="LayeredNet that is not positively homog.*bias"):
        gf.EscapeFlow(problem).check(nets[1])
    # Taken as they are, the same is found by numbers.
    assert [gf.nets.wrap(Calls(net)).degree for net in nets] == [depth + 1, None]
    with pytest.raises(ValueError, match="Wrapped that is not positively homogeneous"):
        gf.EscapeFlow(problem).check(gf.nets.wrap(Calls(nets[1])))


def test_a_model_needs_nothing_but_its_call():
    """Flows, descents and what is measured of a net: as of the MLP that it calls."""
    mlp = gf.nets.MLP([3, 5, 2], key=KEY, activation="identity")
    own = gf.nets.wrap(Calls(mlp))
    problem = gf.Problem(gf.data.teacher(8, [3, 4, 2], key=KEY), gf.losses.squared)
    assert isinstance(own, gf.nets.Wrapped) and not own.knows_kinks
    assert own.reason == "Calls is no linear layer" and own.degree == 2
    solver = gf.solvers.Adaptive(rtol=1e-8)
    for run in (
        lambda net: gf.solve(gf.GradientFlow(problem), net, t1=1.0, solver=solver).final,
        lambda net: gf.descend(problem, net, 1e-2, 20).final,
    ):
        ours, theirs = (jax.tree.leaves(run(net)) for net in (own, mlp))
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-7)
    for measure in (gf.diagnostics.risk, gf.diagnostics.gradient_norm):
        np.testing.assert_allclose(measure(problem, own), measure(problem, mlp), rtol=1e-12)
    kernels = (gf.diagnostics.ntk(problem, net) for net in (own, mlp))
    np.testing.assert_allclose(*kernels, rtol=1e-11, atol=1e-13)


def test_what_equinox_scans_or_squeezes_is_taken_as_it_is():
    x = jax.random.normal(KEY, (6, 3))
    for model, reason in (
        (eqx.nn.MLP(3, 2, 5, 2, scan=True, key=KEY), "MLP has scan=True"),
        (linear(3, "scalar", key=KEY), "Linear has scalars, and not vectors"),
    ):
        net = gf.nets.wrap(model)
        assert isinstance(net, gf.nets.Wrapped) and net.reason == reason
        expected = jax.vmap(model)(x).reshape(6, -1)
        np.testing.assert_allclose(net(x), expected, rtol=1e-14)


@pytest.mark.parametrize("final", [jax.nn.relu, jnp.tanh])
def test_an_output_that_bends_is_taken_as_it_is(final):
    model = eqx.nn.MLP(3, 2, 5, 1, final_activation=final, key=KEY)
    net = gf.nets.wrap(model)
    assert isinstance(net, gf.nets.Wrapped) and final.__name__ in str(net.reason)


def test_degrees_are_found():
    net = gf.nets.wrap(quadratic())
    assert (net.degree, net.in_size, net.out_size) == (3, 3, 2)
    # A bias that is 0 here is not 0 elsewhere.
    rows = gf.nets.wrap(Rows(jnp.ones((3, 2)), jnp.zeros(2)))
    assert (rows.degree, rows.in_size, rows.out_size) == (None, 3, 1)
    assert gf.nets.wrap(quadratic(), in_shape=3).degree == 3


def test_flow_of_a_wrapped_model_against_scipy():
    model = Rows(0.5 * jax.random.normal(KEY, (3, 2)), jnp.zeros(2))
    x = np.asarray(jax.random.normal(jax.random.key(2), (8, 3)))
    y = np.sin(x[:, :1])
    flow = gf.GradientFlow(gf.Problem(gf.Dataset(x, y), gf.losses.squared))
    traj = gf.solve(
        flow, gf.nets.wrap(model), t1=2.0, solver=gf.solvers.Adaptive(rtol=1e-10)
    )

    def velocity(_, theta):
        w, b = theta[:6].reshape(3, 2), theta[6:]
        a = np.tanh(x @ w + b)
        residual = a.sum(1) - y[:, 0]
        pulled = residual[:, None] * (1 - a**2) / len(x)
        return -np.concatenate([(x.T @ pulled).ravel(), pulled.sum(0)])

    start = np.concatenate([np.ravel(model.w), np.ravel(model.b)])
    expected = scipy.integrate.solve_ivp(velocity, (0, 2), start, rtol=1e-11, atol=1e-13)
    got = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(traj.final)])
    np.testing.assert_allclose(got, expected.y[:, -1], rtol=1e-8, atol=1e-9)
    assert traj.certificate.energy_residual <= 1e-8


def test_escape_of_a_wrapped_model_is_its_gradient_flow():
    net = jax.tree.map(lambda w: 0.3 * w, gf.nets.wrap(quadratic()))
    data = gf.data.teacher(8, [3, 4, 2], key=KEY)
    problem = gf.Problem(data, gf.losses.squared)
    solver = gf.solvers.Adaptive(rtol=1e-10)
    escape = gf.solve(gf.EscapeFlow(problem), net, t1=1.0, solver=solver)
    t = float(jnp.exp(escape.final_log_time))
    flow = gf.solve(gf.GradientFlow(problem), net, ts=[t], solver=solver)
    assert distance(escape.final, flow.final) <= 1e-8


def test_solvers_of_wrapped_models():
    """`Adaptive` by default; `ExactKinks`, which sees no kink in them, refuses."""
    net = gf.nets.wrap(quadratic())
    data = gf.data.teacher(8, [3, 4, 2], key=KEY)
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared))
    traj = gf.solve(flow, net, t1=0.1)
    assert traj.certificate.holds
    with pytest.raises(ValueError, match="ExactKinks does not see.*Adaptive"):
        gf.solve(flow, net, t1=0.1, solver=gf.solvers.ExactKinks())
    with pytest.raises(ValueError, match="Wrapped that does not tell where it bends"):
        gf.diagnostics.minimum_norm_subgradient(flow.problem, net)
    descent = gf.descend(flow.problem, net, 1e-3, 100)
    assert distance(descent.final, traj.final) <= 1e-2


class Counts(eqx.Module):
    w: jax.Array
    seen: jax.Array

    def __call__(self, x):
        return self.w @ x


class TwoInputs(eqx.Module):
    w: jax.Array

    def __call__(self, x, z):
        return self.w @ x


class Empty(eqx.Module):
    def __call__(self, x):
        return x


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (lambda x: x, TypeError, "must be an equinox.Module, got function"),
        (Empty(), TypeError, "Empty must have floating arrays to train; it has none"),
        (Counts(jnp.ones((2, 3)), jnp.arange(3)), TypeError, r"Counts\.seen.*not trained"),
        (TwoInputs(jnp.ones((2, 3))), ValueError, "TwoInputs was tried.*take x alone"),
        (Quadratic(jnp.ones(3), jnp.ones(2)), ValueError, "Quadratic.*no input.*in_shape="),
        (
            Quadratic(jnp.ones((4, 3), jnp.float32), jnp.ones((2, 4), jnp.float16)),
            TypeError,
            "float16.*cast them to one dtype",
        ),
    ],
)
def test_what_cannot_be_wrapped(model, error, message):
    with pytest.raises(error, match=message):
        gf.nets.wrap(model)


def test_a_bare_module_is_told_to_be_wrapped(unhooked):
    data = gf.data.teacher(8, [3, 4, 2], key=KEY)
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared))
    with pytest.raises(TypeError, match=r"gf\.nets\.wrap\(model\)"):
        gf.solve(flow, quadratic(), t1=0.1)  # pyright: ignore[reportArgumentType]


def torch_layers(biases):
    """As `model.state_dict()` of torch names and shapes them, in NumPy."""
    rng, widths, found = np.random.default_rng(0), (3, 5, 4, 2), {}
    for i, (a, b) in enumerate(zip(widths[:-1], widths[1:], strict=True)):
        found[f"net.{2 * i}.weight"] = rng.normal(size=(b, a))
        if biases:
            found[f"net.{2 * i}.bias"] = rng.normal(size=b)
    return found


@pytest.mark.parametrize("biases", [False, True])
def test_layers_of_torch(biases):
    layers = torch_layers(biases)
    net = gf.nets.from_torch(layers, ["relu", "leaky_relu(0.2)"])
    assert type(net) is (gf.nets.LayeredNet if biases else gf.nets.MLP)
    x = np.random.default_rng(1).normal(size=(7, 3))
    a = x
    for i, slope in enumerate((0.0, 0.2, 1.0)):
        z = a @ layers[f"net.{2 * i}.weight"].T + layers.get(f"net.{2 * i}.bias", 0.0)
        a = np.where(z > 0, z, slope * z)
    np.testing.assert_allclose(net(jnp.asarray(x)), a, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"0.weight": np.ones((2, 3, 3, 3))}, r"'0\.weight'.*\(2, 3, 3, 3\).*in_shape="),
        ({"1.running_mean": np.ones(3)}, "running_mean.*no weight or bias"),
        ({"0.bias": np.ones(3)}, r"0\.bias without its weight"),
        (
            {"0.weight": np.ones((4, 3)), "1.weight": np.ones((2, 5))},
            r"\(2, 5\).*shape \(4,\)",
        ),
    ],
)
def test_what_torch_has_and_a_stack_has_not(layers, message):
    with pytest.raises(ValueError, match=message):
        gf.nets.from_torch(layers)
