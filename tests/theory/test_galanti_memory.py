"""Galanti & Poggio: what weight decay forgets of the steps of SGD."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from galanti_cases import DECAY, ETA, random_net, regression, sgd

import gfdyn as gf
from gfdyn.theory import galanti


sizes = ("steps", "batch_size", "uses")
low_rank_unrolled = jax.jit(galanti.low_rank_unrolled, static_argnames=sizes)
memory_bound = jax.jit(galanti.memory_bound, static_argnames=sizes)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_the_last_steps_have_the_rank_of_their_samples(momentum):
    widths = (5, 6, 5, 3)
    problem = regression(widths)
    first = sgd(problem, random_net(widths), 9, momentum)
    last = sgd(problem, first.checkpoint, 2, momentum)
    velocity = first.checkpoint.velocity if momentum else None
    settings: dict[str, Any] = dict(
        rate=ETA, weight_decay=DECAY, momentum=momentum, velocity=velocity
    )
    check = low_rank_unrolled(first.final, last.final, 2, 1, **settings)
    assert check.verdict == "HOLDS" and not check.vacuous.any()
    assert float(check.lhs.max()) <= 1e-14
    # A wrong rate leaves a remainder of full rank.
    wrong = low_rank_unrolled(
        first.final, last.final, 2, 1, **(settings | {"rate": 1.5 * ETA})
    )
    assert wrong.verdict == "VIOLATED" and float(wrong.lhs.min()) > 1e-3
    bound = memory_bound(first.final, last.final, 2, 1, **settings)
    assert bound.holds.all()
    if not momentum:
        q = 1 - 2 * ETA * DECAY
        for layer in range(3):
            w, old = last.final.weights[layer], first.final.weights[layer]
            s = np.linalg.svd(np.asarray(w), compute_uv=False)
            size = np.linalg.norm(w)
            np.testing.assert_allclose(
                bound.lhs[layer], np.linalg.norm(s[2:]) / size, rtol=1e-12
            )
            np.testing.assert_allclose(
                bound.rhs[layer], q**2 * np.linalg.norm(old) / size, rtol=1e-12
            )
    with pytest.raises(ValueError, match="steps=0 and batch_size=1"):
        galanti.memory_bound(first.final, last.final, 0, 1, rate=0.1, weight_decay=0.1)


def test_companion():
    """Its slow eigenvalue at the paper's settings, and the span that follows."""
    eta, decay, beta = 0.1, 5e-4, 0.9
    values = np.linalg.eigvals(np.asarray(galanti.companion(eta, decay, beta)))
    slow = 1 - 2 * eta * decay / (1 - beta)
    np.testing.assert_allclose(1 - max(values.real), 1 - slow, rtol=1e-2)
    steps, rank = galanti.memory_span(1e-4, eta / (1 - beta), decay, 4)
    assert (steps, rank) == (9904, 39616)
    with pytest.raises(ValueError, match="rate=0.0 must be positive"):
        galanti.memory_span(1e-4, 0.0, decay, 4)


TABLE = {
    0.001: (8.16, 4.08, 2.04, 1.02, 0.51, 0.255),
    0.01: (81.6, 40.8, 20.4, 10.2, 5.10, 2.55),
    0.1: (816, 408, 204, 102, 51.0, 25.5),
}


@pytest.mark.parametrize("rate", TABLE)
def test_forgetting_exponents_of_the_paper(rate):
    """CIFAR-10, 500 epochs, λ = 5e-4, β = 0.9: Λ to three digits."""
    for size, expected in zip((4, 8, 16, 32, 64, 128), TABLE[rate], strict=True):
        # In epochs of 50 000/B steps, as their number is no whole one for every B.
        schedule = gf.SteppedRate(rate, 500)
        found = galanti.forgetting_exponent(schedule, 500, 5e-4, 0.9) * 50_000 / size
        assert f"{float(found):.3g}" == f"{expected:.3g}"


def test_forgetting_exponents():
    schedule = gf.SteppedRate(0.1, 20)
    total = sum(float(schedule(jnp.asarray(k))) for k in range(20))
    np.testing.assert_allclose(
        galanti.forgetting_exponent(schedule, 20, 0.03, 0.5), 0.12 * total, rtol=1e-13
    )
    problem, net = regression(), random_net()
    traj = sgd(problem, net, 6, momentum=0.5)
    exponent = galanti.forgetting_exponent(ETA, 6, DECAY, 0.5)
    np.testing.assert_allclose(exponent, 2 * DECAY * traj.final_time, rtol=1e-13)
    # Without gradients the weights fade about so.
    power = np.linalg.matrix_power(np.asarray(galanti.companion(1e-3, 0.5, 0.5)), 3000)
    faded = float(galanti.forgetting_exponent(1e-3, 3000, 0.5, 0.5))
    np.testing.assert_allclose(-np.log(power[0, 0]), faded, rtol=1e-2)
    refused: Any = (
        ((gf.NormScaledRate(0.1), 5, 0.1), "rate depends on the net"),
        ((0.1, 0, 0.1), "steps=0 must be 1 or more"),
        ((0.1, 5, 0.1, 1.0), r"momentum=1.0 must lie in \[0, 1\)"),
    )
    for given, message in refused:
        with pytest.raises(ValueError, match=message):
            galanti.forgetting_exponent(*given)
