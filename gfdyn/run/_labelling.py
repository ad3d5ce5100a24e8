"""Trajectories as labelled datasets."""

import operator
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from .. import nets
from ._kink_log import Kinks
from ._lanes import lane
from ._results import RESULTS


if TYPE_CHECKING:
    import xarray as xr


def to_xarray(traj: Any) -> "xr.Dataset":
    """The trajectory as a dataset with named dims, units and settings.

    Dims: `save`, `interval` (between neighbouring saves), `layer` (1 … L), `hidden`
    (1 … L−1), `neuron_l`. The weights are θ for a GradientFlow, ρ for an EscapeFlow.

    Of a batch there is the dim `lane` besides (`lane_0`, `lane_1`, … if it has several
    axes), NaN stands in rows that were not reached, and how each lane ended is no attribute
    but a variable.
    """
    if traj.batch_shape:
        return _of_batch(traj)
    return _of_one(traj, traj.flow.direction(traj.final_position))


def _of_batch(traj: Any) -> "xr.Dataset":
    """The datasets of the lanes side by side, axis by axis."""
    import xarray as xr

    axes = len(traj.batch_shape)

    def along(traj: Any, axis: int) -> "xr.Dataset":
        if axis == axes:
            dataset = _of_one(traj, traj.flow.direction(traj.final_position))
            told = {k: v for k, v in dataset.attrs.items() if k not in ("flow", "net")}
            dataset.attrs = {k: dataset.attrs[k] for k in ("flow", "net")}
            return dataset.assign(told)
        rows = range(traj.batch_shape[0])
        lanes = [along(lane(traj, i), axis + 1) for i in rows]
        return xr.concat(
            lanes,
            dim="lane" if axes == 1 else f"lane_{axis}",
            data_vars="all",
            coords="different",
            compat="equals",
            join="exact",
            combine_attrs="override",
        )

    return along(traj, 0)


def _of_one(traj: Any, template: nets.AbstractNet) -> "xr.Dataset":
    """The dataset of a single trajectory, whose nets are like the template."""
    import xarray as xr

    clock = traj.flow.clock_name
    clock_units = {"t": "physical time"}.get(clock, "clock of the flow")
    variables: dict[str, Any] = {
        "log_time": ("save", traj.log_time, {"long_name": "log of physical time"}),
        "log_interval": (
            "interval",
            traj.log_interval,
            {"long_name": "log of the physical time between neighbouring saves"},
        ),
    }
    if traj.flow.is_polar:
        variables["log_radius"] = (
            "save",
            traj.log_radius,
            {"long_name": "log r, r = ‖θ‖/√L"},
        )
    names, leaves = template.parameter_names, _leaves(traj)
    for name, dims, leaf in zip(names, _parameter_dims(template), leaves, strict=True):
        variables[name] = (("save", *dims), leaf)
    for name, record in traj.records.items():
        variables |= _label_record(name, record, template)
    if traj.kinks is not None:
        variables |= _label_kinks(traj.kinks)
    variables = {
        name: (dims, np.asarray(values), *attributes)
        for name, (dims, values, *attributes) in variables.items()
    }
    return xr.Dataset(
        variables,
        coords={
            clock: ("save", np.asarray(traj.ts), {"units": clock_units}),
            "layer": np.arange(1, len(template.weights) + 1),
            "hidden": np.arange(1, len(template.weights)),
        },
        attrs=_attributes(traj),
    )


def _leaves(traj: Any) -> list[Array]:
    directions = jax.vmap(traj.flow.direction)(traj.positions)
    return jax.tree.leaves(directions)


def _parameter_dims(net: nets.AbstractNet) -> list[tuple[str, ...]]:
    """Of each parameter, the neurons that it joins, where it is the matrix of a layer."""
    leaves, matrices = jax.tree.leaves(net), net.weights
    widths = [net.in_size, *map(len, matrices)]
    chain = [matrix.shape[1] for matrix in matrices] == widths[:-1]
    one_each = len(leaves) == len(matrices) == len(net.activations) + 1
    if chain and one_each and all(map(operator.is_, leaves, matrices)):
        hidden = [f"neuron_{layer}" for layer in range(1, len(matrices))]
        neurons = ["feature", *hidden, "output"]
        return list(zip(neurons[1:], neurons[:-1], strict=True))
    pairs = zip(net.parameter_names, leaves, strict=True)
    return [tuple(f"{name}_{i}" for i in range(leaf.ndim)) for name, leaf in pairs]


def _label_record(name: str, record: Any, net: nets.AbstractNet) -> dict[str, Any]:
    """One variable for an array, one for each leaf of a pytree, dims named by size."""
    leaves = jax.tree_util.tree_leaves_with_path(record)
    named = {}
    for path, leaf in leaves:
        label = name + "".join(f"_{_index(key)}" for key in path)
        dims = ["save"]
        for axis, size in enumerate(leaf.shape[1:]):
            layered = {len(net.weights): "layer", len(net.activations): "hidden"}
            if axis == 0 and not path and size in layered:
                dims.append(layered[size])
            else:
                dims.append(f"{label}_{axis}")
        named[label] = (dims, leaf)
    return named


def _label_kinks(kinks: Kinks) -> dict[str, Any]:
    """The events along the dim `kink`, and of each hidden layer its gates."""
    kind = np.asarray(kinks.kinds)[np.asarray(kinks.kind)]
    events = {name: getattr(kinks, name) for name in ("time", "layer", "unit", "sample")}
    events["kind"] = kind
    for name in ("side", "other_side"):
        if (side := getattr(kinks, name)) is not None:
            # -1, no side, is the last
            events[name] = np.asarray([*kinks.sides, ""])[np.asarray(side)]
    named: dict[str, Any] = {
        f"kink_{name}": ("kink", values) for name, values in events.items()
    }
    for i, gates in enumerate(kinks.gates, start=1):
        site = ("sample", f"neuron_{i}")
        named[f"gate_{i}"] = (("save", *site), gates, {"long_name": "value of the gate"})
        named[f"sliding_{i}"] = (("save", *site), kinks.sliding[i - 1])
        named[f"sliding_fraction_{i}"] = (site, kinks.sliding_fraction[i - 1])
    return named


def _index(key: Any) -> str:
    # Tuples of per-layer arrays are counted from 1, as layers are.
    if isinstance(key, jax.tree_util.SequenceKey):
        return str(key.idx + 1)
    return str(getattr(key, "key", getattr(key, "name", key)))


def _attributes(traj: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "flow": repr_settings(traj.flow),
        "net": repr_settings(traj.flow.direction(traj.final_position)),
        "result": RESULTS[traj.result],
        "stopped_by": traj.stopped_by or "",
        "final_time": float(traj.final_time),
        "final_log_time": float(traj.final_log_time),
        "solver": traj.solver,
        "rtol": float(traj.rtol),
    }
    attributes |= {name: int(value) for name, value in traj.stats.items()}
    for name in ("energy_residual", "balance_drift", "risk_increase"):
        attributes[name] = float(getattr(traj.certificate, name))
    attributes["choices"] = int(traj.certificate.choices)
    attributes["verified"] = int(traj.certificate.verified)
    attributes["certificate_holds"] = int(traj.certificate.holds)
    return attributes


def repr_settings(module: eqx.Module) -> str:
    """The settings of a module in one line, arrays by their shape."""
    return " ".join(eqx.tree_pformat(module, indent=0, width=1_000_000).split())
