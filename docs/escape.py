"""The figure of the README, from a finished `make run`: `python docs/escape.py results`."""

import sys
from pathlib import Path

import xarray as xr
from matplotlib.figure import Figure

from gfdyn import plotting


def draw(dataset: xr.Dataset) -> Figure:
    """Loss, escape speed, and the singular values of the first and of a middle layer."""
    figure = Figure(figsize=(11, 2.6), layout="constrained")
    axes = figure.subplots(1, 4)
    plotting.loss(axes[0], dataset)
    axes[0].set_ylim(bottom=1.5)
    plotting.escape_speed(axes[1], dataset)
    plotting.singular_values(axes[2], dataset, layer=1)
    plotting.singular_values(axes[3], dataset, layer=4)
    for ax in axes:
        plotting.zoom_on_change(ax, dataset)
    return figure


if __name__ == "__main__":
    results = Path(sys.argv[1])
    with xr.open_dataset(results / "escape" / "trajectory.nc", engine="h5netcdf") as data:
        draw(data).savefig(Path(__file__).with_suffix(".png"), dpi=110)
