"""Small sweeps, and what is left behind of them."""

from functools import partial

import gfdyn as gf


S = gf.sweeps
PROBLEM = S.ProblemSettings(samples=6, teacher=(3, 2, 1))
DESCENTS = S.Spec(
    problem=PROBLEM,
    net=S.NetSettings(width=3, depth=2, init_scale=1.0),
    run=S.DescentSettings(learning_rate=0.05, steps=30),
    records=("risk", "layer_norms"),
    max_saves=8,
    axes={"net.init_scale": (1.0, 0.1), "net.depth": (2, 3), "net.seed": (0, 1)},
    engine=S.EngineSettings(checkpoint_every=8),
)
FLOWS = S.Spec(
    problem=PROBLEM,
    net=S.NetSettings(width=3, depth=2),
    run=S.EscapeSettings(tau_max=15.0),
    solver=S.SolverSettings(name="adaptive", rtol=1e-3, max_steps=200),
    records=("risk",),
    max_saves=8,
    axes={"net.init_scale": (1.0, 1e-3)},
    engine=S.EngineSettings(checkpoint_every=3),
)
run = partial(S.run, progress=False)
