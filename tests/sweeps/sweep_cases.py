"""Small sweeps, of descents and of flows."""

from functools import partial

from gfdyn import sweeps


PROBLEM = sweeps.ProblemSettings(samples=6, teacher=(3, 2, 1))
DESCENTS = sweeps.Spec(
    problem=PROBLEM,
    net=sweeps.NetSettings(width=3, depth=2, init_scale=1.0),
    run=sweeps.DescentSettings(learning_rate=0.05, steps=30),
    records=("risk", "layer_norms"),
    max_saves=8,
    axes={"net.init_scale": (1.0, 0.1), "net.depth": (2, 3), "net.seed": (0, 1)},
    engine=sweeps.EngineSettings(checkpoint_every=8),
)
FLOWS = sweeps.Spec(
    problem=PROBLEM,
    net=sweeps.NetSettings(width=3, depth=2),
    run=sweeps.EscapeSettings(tau_max=15.0),
    solver=sweeps.SolverSettings(name="adaptive", rtol=1e-3, max_steps=200),
    records=("risk",),
    max_saves=8,
    axes={"net.init_scale": (1.0, 1e-3)},
    engine=sweeps.EngineSettings(checkpoint_every=3),
)
run = partial(sweeps.run, progress=False)
