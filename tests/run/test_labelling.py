"""Trajectories as labelled datasets."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from storage_cases import (
    classifying_escape,
    decaying_flow,
    localized_escape,
    made,
    plain_flow,
)

import gfdyn as gf


def test_dataset_of_a_gradient_flow():
    traj = made(decaying_flow)
    dataset = traj.to_xarray()
    dims = {
        "log_time": ("save",),
        "log_interval": ("interval",),
        "W1": ("save", "neuron_1", "feature"),
        "W2": ("save", "neuron_2", "neuron_1"),
        "W3": ("save", "output", "neuron_2"),
        "risk": ("save",),
        "stable_rank": ("save", "layer"),
        "singular_values": ("save", "layer", "singular_values_1"),
        "alignment": ("save", "hidden"),
        "kink_count": ("save", "hidden"),
        "neuron_balance_1": ("save", "neuron_balance_1_0"),
        "neuron_balance_2": ("save", "neuron_balance_2_0"),
    }
    assert {name: variable.dims for name, variable in dataset.items()} == dims
    sizes = {"save": 5, "interval": 4, "layer": 3, "hidden": 2, "neuron_1": 5}
    assert sizes.items() <= dataset.sizes.items()
    assert dataset["t"].dims == ("save",)
    assert dataset["t"].attrs["units"] == "physical time"
    np.testing.assert_array_equal(dataset["t"], traj.ts)
    for i, weight in enumerate(traj.net.weights, 1):
        np.testing.assert_array_equal(dataset[f"W{i}"], weight)
    for name in ("risk", "stable_rank", "singular_values", "alignment", "kink_count"):
        np.testing.assert_array_equal(dataset[name], traj.records[name])
    for i, balance in enumerate(traj.records["neuron_balance"], 1):
        np.testing.assert_array_equal(dataset[f"neuron_balance_{i}"], balance)
    assert dataset["log_time"].attrs["long_name"] == "log of physical time"
    assert "log_radius" not in dataset


def test_dataset_of_an_escape_flow():
    traj = made(classifying_escape)
    dataset = traj.to_xarray()
    assert dataset["tau"].dims == ("save",) and "t" not in dataset.coords
    assert dataset["tau"].attrs["units"] == "clock of the flow"
    assert dataset["log_radius"].dims == ("save",)
    assert dataset["log_radius"].attrs["long_name"] == "log r, r = ‖θ‖/√L"
    np.testing.assert_array_equal(dataset["log_radius"], traj.log_radius)
    for i, weight in enumerate(traj.direction.weights, 1):
        np.testing.assert_array_equal(dataset[f"W{i}"], weight)
    square = sum((dataset[f"W{i}"].values ** 2).sum(axis=(1, 2)) for i in (1, 2, 3))
    np.testing.assert_allclose(square, 3.0, rtol=1e-12)
    assert dataset.sizes["interval"] == dataset.sizes["save"] - 1


@pytest.mark.parametrize("maker", [decaying_flow, classifying_escape])
def test_layers_are_counted_from_one(maker):
    """`.sel(layer=1)` is W_1, as in the papers."""
    dataset = made(maker).to_xarray()
    assert dataset["layer"].values.tolist() == [1, 2, 3]
    assert dataset["hidden"].values.tolist() == [1, 2]
    first = dataset["stable_rank"].sel(layer=1)
    np.testing.assert_array_equal(first, made(maker).records["stable_rank"][:, 0])


def test_attributes_say_what_was_solved_and_how_it_went():
    traj = made(classifying_escape)
    attributes = traj.to_xarray().attrs
    assert attributes["flow"].startswith("EscapeFlow(")
    assert "CrossEntropy" in attributes["flow"] and "f64[9,4]" in attributes["flow"]
    assert attributes["net"].startswith("MLP(") and "\n" not in attributes["net"]
    assert attributes["stopped_by"] == traj.stopped_by == "RadiusAbove"
    assert attributes["result"] == "stopped"
    assert attributes["final_time"] == float(traj.final_time)
    assert attributes["final_log_time"] == float(traj.final_log_time)
    assert attributes["num_steps"] == int(traj.stats["num_steps"]) > 0
    assert set(traj.stats) <= set(attributes)
    for name in ("energy_residual", "balance_drift", "risk_increase"):
        assert attributes[name] == float(getattr(traj.certificate, name))


def test_attributes_name_a_failure():
    attributes = made(localized_escape).to_xarray().attrs
    assert "maximum number of solver steps" in attributes["result"]
    assert attributes["stopped_by"] == ""


def test_records_that_are_trees_get_a_name_for_each_leaf():
    dataset = made(localized_escape).to_xarray()
    direction = made(localized_escape).records["direction"].weights
    for i, weight in enumerate(direction, 1):
        np.testing.assert_array_equal(dataset[f"direction_matrices_{i}"], weight)
        assert dataset[f"direction_matrices_{i}"].dtype == np.float32


def test_dataset_of_a_net_without_hidden_layers():
    dataset = made(plain_flow).to_xarray()
    assert dataset["W1"].dims == ("save", "output", "feature")
    assert dataset.sizes["save"] == 1 and dataset.sizes["interval"] == 0


def descent(net) -> gf.Trajectory:
    data = gf.data.gaussian(5, 3, key=jax.random.key(1))
    return gf.descend(gf.Problem(data, gf.losses.squared), net, 0.01, 2, save_every=1)


def test_dataset_of_dense_layers():
    """The matrices of a chain of layers join neurons, as those of an MLP do."""
    blocks = [gf.nets.dense(4), gf.nets.dense(1, "identity")]
    traj = descent(gf.nets.sequential(3, blocks, key=jax.random.key(0)))
    dataset = traj.to_xarray()
    assert dataset["W1"].dims == ("save", "neuron_1", "feature")
    assert dataset["W2"].dims == ("save", "output", "neuron_1")
    assert dataset["W1"].shape == (3, 4, 3) and dataset["W2"].shape == (3, 1, 4)
    np.testing.assert_array_equal(dataset["W1"][-1], traj.final.weights[0])


def test_dataset_of_a_branch():
    """A sum of layers has no matrix, so that matrices and layers are not in step."""
    blocks = [gf.nets.resnet_branch(5), gf.nets.dense(1, "identity")]
    net = gf.nets.sequential(3, blocks, key=jax.random.key(0))
    dataset = descent(net).to_xarray()
    assert dataset["W1"].dims == ("save", "W1_0", "W1_1")


class Columns(eqx.Module):
    """tanh(x V) v: matrices with a column for each unit."""

    first: jax.Array
    last: jax.Array

    def __call__(self, x):
        return jnp.tanh(x @ self.first) @ self.last


def test_dataset_of_matrices_that_are_no_layers():
    model = gf.nets.wrap(Columns(0.1 * jnp.ones((3, 4)), jnp.ones((4, 1))), in_shape=3)
    dataset = descent(model).to_xarray()
    shapes = [dataset[name].shape for name in model.parameter_names]
    assert shapes == [(3, 3, 4), (3, 4, 1)]
