"""The decision at a kink alone, on tangent networks that are solved by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tangents import PLACES, decided, followed, states, tangent

import gfdyn as gf
from gfdyn.kinks import OFF, ON, SLIDING, offset_of, regime


def decision(t, *proposal, playing=False):
    """The states that are decided on, which must be verified, coming from closed gates."""
    found = decided(t, states(*proposal), -jnp.abs(t.rate), jnp.asarray(playing))
    assert found.verified
    return tuple(int(s) for s in found.state[: len(proposal)])


@pytest.mark.parametrize("playing", [False, True])
@pytest.mark.parametrize(
    "signal, expected",
    [(2.0, SLIDING), (0.5, ON), (-1.0, ON)],
    ids=["attracts", "lets-pass", "repels-beyond"],
)
def test_one_kink(signal, expected, playing):
    """Closed, z rises at 1; open, at 1 − c."""
    assert decision(tangent([1.0], [signal]), ON, playing=playing) == (expected,)


def test_a_gate_carries_what_holds_it():
    """ν = 0.6 of c = 2: opened it gains 1.4, closed 0.6."""
    there = followed(tangent([0.6], [2.0]), states(SLIDING))
    np.testing.assert_allclose(there.nu[0], 0.6, rtol=1e-9)
    np.testing.assert_allclose([there.opens[0], there.closes[0]], [1.4, 0.6], rtol=1e-9)
    np.testing.assert_allclose(there.rate[0], 0.0, atol=1e-9)


@pytest.mark.parametrize("playing", [False, True])
@pytest.mark.parametrize(
    "signal, expected",
    [((1.0, 1.0), SLIDING), ((1.0, -0.2), ON), ((1.0, 0.6), SLIDING)],
)
def test_two_that_share_a_kink(signal, expected, playing):
    """Together they take c₁ + c₂ of the rate 1.5; what of it either takes is open."""
    t = tangent([1.5, 1.5], signal, gram=np.ones((2, 2)))
    assert decision(t, ON, ON, playing=playing) == (expected, expected)


def test_three_that_share_a_kink_to_which_a_fourth_does_not_belong():
    gram = np.eye(4)
    gram[:3, :3] = 1.0
    t = tangent([1.0, 1.0, 1.0, 0.4], [2.0, -3.0, 2.5, 0.1], gram)
    assert decision(t, ON, ON, ON, ON) == (SLIDING, SLIDING, SLIDING, ON)


def test_antipodal_samples():
    """One gate is λ, the other 1 − λ: together they take between −c₂ and c₁."""
    gram = np.array([[1.0, -1.0], [-1.0, 1.0]])
    slides = tangent([0.5, -0.5], [1.0, 1.0], gram)
    assert decision(slides, ON, OFF) == (SLIDING, SLIDING)
    crosses = tangent([1.5, -1.5], [1.0, 1.0], gram)
    assert decision(crosses, ON, OFF) == (ON, OFF)


def test_kinks_almost_parallel_part_though_multipliers_in_range_would_move_both_alike():
    """One gate at 0.84 holds the first; the second falls at 1e-6, far above rounding."""
    almost = 1 - 4.5e-10
    t = tangent([0.84, 0.84 - 1e-6], [1.0, 1.0], np.array([[1.0, almost], [almost, 1.0]]))
    assert decision(t, SLIDING, SLIDING) == (SLIDING, OFF)
    assert decision(t, ON, SLIDING) == (SLIDING, OFF)


def test_a_signal_that_changes_sign():
    """ν/c = ½ in range, but c < 0: the kink repels on both sides, and the gate closes."""
    t = tangent([-0.5], [-1.0])
    there = followed(t, states(SLIDING))
    assert there.repels[0]
    assert decision(t, SLIDING) == (OFF,)


@pytest.mark.parametrize("part, after", [(0.4, OFF), (0.9, ON), (1 - 1e-12, OFF)])
def test_where_a_gate_goes_whose_kink_repels(part, after):
    """To the side on which it stood for longer, but for one on which Φ stays what it is."""
    there = followed(tangent([-part], [-1.0]), states(SLIDING))
    assert there.let_go[0] == after


def stacked(rate):
    """A site below one that shares its kink with another sample's."""
    gram = np.eye(3)
    gram[1:, 1:] = 1.0
    passed = np.zeros((3, 3))
    passed[1, 0] = 1.0
    return tangent([rate, 1.0, 1.0], [0.2, 3.0, -1.0], gram, passed)


@pytest.mark.parametrize("rate, gained", [(1.0, 0.0), (1.5, -0.3)])
def test_a_stacked_pair(rate, gained):
    r"""Opened, it costs c and moves the kink above back so that its own sample stays there:
    that costs the multiplier 1 of that kink, 0.2 + 1 − ν in all. What two sites on one kink
    above share of its multiplier is free, and what it may be at best is 0 if that is > 0.
    """
    there = followed(stacked(rate), states(SLIDING, SLIDING, SLIDING))
    np.testing.assert_allclose(min(there.opens[0], 0.0), gained, atol=1e-3)
    after = decision(stacked(rate), SLIDING, SLIDING, SLIDING)
    assert after == ((ON, SLIDING, OFF) if gained < 0 else (SLIDING,) * 3)


@pytest.mark.parametrize("rate, expected", [(1.5, (2, 0, 0)), (2.5, (1, 1, 0))])
def test_a_unit_that_dies_with_two_above(rate, expected):
    """The last unit of a sample: those above have no normal of their own. Opened, it opens
    that with the positive weight, which takes 2; the other one's 5 does not count."""
    gram = np.diag([1.0, 0.0, 0.0])
    passed = np.zeros((3, 3))
    passed[1:, 0] = 1.0, -1.0
    t = tangent([rate, 0.0, 0.0], [0.0, 2.0, 5.0], gram, passed)
    assert decision(t, SLIDING, OFF, OFF) == expected


def test_a_unit_whose_weights_vanish():
    """Three samples in a plane, all of which attract: multipliers that hold it exist."""
    x = np.array([[1.0, 0.0], [0.0, 1.0], [np.sqrt(0.5), np.sqrt(0.5)]])
    t = tangent(x @ np.array([0.5, 0.5]), [1.0, 1.0, 1.0], x @ x.T)
    there = followed(t, states(SLIDING, SLIDING, SLIDING))
    np.testing.assert_allclose(there.rate[:3], 0.0, atol=1e-8)
    assert decision(t, ON, ON, ON, playing=True) == (SLIDING, SLIDING, SLIDING)


def test_a_unit_that_several_regimes_would_take_on():
    """Its weights come to 0 along the kink of the fourth sample. With signals c < 0 more
    than one regime is right; gradient descent ends in that with all gates off, though what
    is wrong with proposals leads to that with the third one on."""
    x = [[-0.11, -0.99], [-0.11, -0.99], [0.29, -0.96], [-0.16, -0.99], [-0.52, -0.85]]
    x = np.array([*x, [-0.29, -0.96]])
    signal, moves = np.array([1.8, 1.8, -0.5, 5.8, -3.0, -1.0]), np.array([3.7, 1.2])
    t = tangent(x @ moves, signal, x @ x.T)
    before = followed(t, states(OFF, OFF, OFF, SLIDING, ON, ON))
    start = offset_of(t, before, jnp.zeros_like(before.rate))
    reached = states(ON, OFF, OFF, SLIDING, ON, ON)
    found = decided(t, reached, start, jnp.asarray(False))

    weights = np.array([-0.99, 0.16])
    for _ in range(10_000):
        weights += 1e-3 * (moves - signal @ (x * (x @ weights > 0)[:, None]))
    assert np.all(x @ weights < 0)
    assert found.verified
    assert np.all(found.state == OFF)


def test_what_is_at_rest_is_left_by_others_alone():
    """Off at z = 0 with c < 0: opened it would descend, but gradient descent never sees
    that side."""
    assert decision(tangent([0.0], [-1.0]), OFF) == (OFF,)


def test_multipliers_of_kinks_that_all_but_depend_on_each_other():
    """Normals at an angle of 6e-4: what holds both is unique. Opening the second one gains
    what its multiplier has above its signal, and nothing may be shared out between them."""
    gram = np.array([[1.0, 1 - 2e-7], [1 - 2e-7, 1.0]])
    nu, signal = np.array([-0.5, 1.5]), np.ones(2)
    t = tangent(gram @ nu, signal, gram)
    there = followed(t, states(SLIDING, SLIDING))
    np.testing.assert_allclose(there.rate[:2], 0.0, atol=float(t.rounding[0]))
    np.testing.assert_allclose(there.nu[:2], nu, rtol=1e-3)
    np.testing.assert_allclose(there.opens[:2], signal - nu, rtol=1e-3)
    np.testing.assert_allclose(there.closes[:2], nu, rtol=1e-3)


def test_sharing_a_kink_is_handed_on():
    """Of three kinks in a row, at angles of 5e-6, the outer ones count as parallel, too, as
    both are to the one in the middle: all three decide together."""
    angle = np.array([0.0, 5e-6, 1e-5])
    gram = np.cos(angle[:, None] - angle)
    t = tangent(gram @ [0.1, 0.1, 0.1], [1.0, 1.0, -0.5], gram)
    there = followed(t, states(SLIDING, SLIDING, SLIDING))
    assert np.all(there.shares[:3, :3] != 0)
    np.testing.assert_allclose(there.opens[0], 1.5 - 0.3, rtol=1e-6)
    assert decision(t, ON, ON, OFF) == (SLIDING, SLIDING, SLIDING)


def test_rates_that_differ_by_rounding_are_held_by_multipliers_in_range():
    """Three normals close together, whose differences are of lengths² 1e-8 and 1e-10. Rates
    that differ by less than their rounding would take multipliers of hundreds to be held
    to the last digit; up to rounding they are held at half of the signals."""
    along = np.array([[1.0, 1.0, 1.0], [1.0, -1.0, 0.0], [1.0, 1.0, -2.0]])
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    gram = along.T @ np.diag([3.0, 1e-8, 1e-10]) @ along
    half, exact = 0.5 * np.ones(3), 0.5 + 5 * along[1] + 300 * along[2]
    t = tangent(gram @ exact, np.ones(3), gram)
    assert np.all(np.abs(gram @ (exact - half)) < t.rounding[:3])
    assert decision(t, SLIDING, SLIDING, SLIDING) == (SLIDING, SLIDING, SLIDING)
    there = followed(t, states(SLIDING, SLIDING, SLIDING))
    assert np.all(np.abs(there.rate[:3]) < 2 * t.rounding[:3])
    assert np.all(there.least[:3] >= -there.psi_rounding[:3])


def unit_on_forty_samples():
    """The two weights of a unit vanish on 40 samples, with gates near 0 and 1: the samples,
    the gates, and the smallest multipliers that hold it."""
    generator = np.random.default_rng(0)
    angle = generator.uniform(0, 2 * np.pi, 40)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    gates = np.where(x[:, 0] > 0, 0.98, 0.02)
    return x, gates, x @ np.linalg.solve(x.T @ x, x.T @ gates)


def test_multipliers_in_range_are_found_among_all_that_hold_a_unit():
    """38 changes of their multipliers move nothing, and the smallest ones are far out of
    range."""
    x, gates, smallest = unit_on_forty_samples()
    assert np.sum((smallest < 0) | (smallest > 1)) > 5
    gram = x @ x.T
    t = tangent(gram @ gates, np.ones(40), gram, places=40)
    there = followed(t, jnp.full(40, SLIDING))
    np.testing.assert_allclose(there.rate, 0.0, atol=1e-7)
    assert np.all(there.least > -t.rounding)
    assert np.all((there.nu > -1e-6) & (there.nu < 1 + 1e-6))


def test_others_move_as_under_the_smallest_multipliers():
    """A slow site, off, along whose normal the others have parts that are rounding to them
    and not to it: multipliers in range would move it otherwise than the smallest do."""
    x, gates, smallest = unit_on_forty_samples()
    parts = 1e-9 * np.random.default_rng(1).normal(size=40)
    gram = np.eye(41)
    gram[:40, :40] = x @ x.T
    gram[40, :40] = gram[:40, 40] = parts
    sizes, rate = np.r_[np.ones(40), 1e-3], np.r_[x @ x.T @ gates, 0.0]
    t = tangent(rate, sizes, gram, places=41, terms=sizes)
    there = followed(t, jnp.asarray([SLIDING] * 40 + [OFF], jnp.int8))
    moved = parts @ (there.nu[:40] - smallest)
    assert abs(moved) > 10 * t.rounding[40]
    np.testing.assert_allclose(there.rate[40], -parts @ smallest, rtol=1e-3)


def test_rounding_arrives_with_what_sites_below_may_pass():
    """A site that moves at 2.7 times the rounding of one below that passes it three times
    its rate: it is at rest, whether that is open or not, as others are that slide."""
    passed = np.zeros((3, 3))
    passed[1, 0] = 3.0
    t = tangent([0.0, 0.0, 1.0], [0.0, 0.0, 2.0], np.diag([1.0, 0.0, 1.0]), passed)
    np.testing.assert_allclose(t.rounding[1], 4 * t.rounding[0])
    t = eqx.tree_at(lambda t: t.rate, t, t.rate.at[0].set(0.9 * t.rounding[0]))
    there = followed(t, states(ON, OFF, SLIDING))
    assert there.rate[1] == 3 * t.rate[0] > 2 * t.rounding[0]
    # The multiplier that would hold it is off by as much, relative to its own normal.
    np.testing.assert_allclose(there.psi_rounding[1], t.rounding[1] / 9)
    assert decision(t, ON, OFF, SLIDING) == (ON, OFF, SLIDING)


@pytest.mark.parametrize("own, expected", [(0.5, SLIDING), (-0.5, OFF)])
def test_what_moves_as_others_slide(own, expected):
    """A third site, at rest, off, whose normal is the sum of those of two that slide: it
    slides with these, but stays off where its own kink repels."""
    normals = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    t = tangent(normals @ [0.5, 0.5], [1.0, 1.0, own], normals @ normals.T)
    assert decision(t, SLIDING, SLIDING, OFF) == (SLIDING, SLIDING, expected)


@pytest.mark.parametrize("own, expected", [(0.5, SLIDING), (-0.5, ON)])
def test_what_is_open_and_moves_as_others_slide(own, expected):
    """The same with a third site that is on: left of a kink that repels, it stays so."""
    normals = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    gram = normals @ normals.T
    t = tangent(gram @ [0.5, 0.5, own], [1.0, 1.0, own], gram)
    assert decision(t, SLIDING, SLIDING, ON) == (SLIDING, SLIDING, expected)


def test_a_kink_attracts_as_a_whole():
    """Antipodal samples, one on, one off, on a kink that moves as others slide: the one
    that is on would attract by itself, both together repel, and each stays on its side."""
    normals = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-0.6, -0.8]])
    gram = normals @ normals.T
    t = tangent(gram @ [0.5, 0.5, 0.1, 0.0], [1.0, 1.0, 0.1, -0.5], gram)
    stays = (SLIDING, SLIDING, ON, OFF)
    assert decision(t, *stays) == stays


def test_what_is_only_near_its_kink_may_rest():
    """A rate that may come of θ being off the kink says nothing of it."""
    assert decision(tangent([1e-3], [1.0]), OFF) == (SLIDING,)
    assert decision(tangent([1e-3], [1.0], astray=2e-3), OFF) == (OFF,)


@pytest.mark.parametrize("length", [1.0, 1e-7])
def test_what_several_open_gates_carry_may_slide(length):
    """A site with no normal of its own, above two that open at rates that cancel there: it
    is held at its kink by what passes through these, however short their normals are."""
    passed = np.zeros((3, 3))
    passed[2, 0], passed[2, 1] = 1.0, -1.0
    gram = np.diag([1.0, 1.0, 0.0]) * length**2
    # Open, site 2 would change the rates to 0.6 − 1 and 0.4 + 1: 0.2 − 2 on itself.
    rate = np.array([0.6, 0.4, 0.0]) * length**2
    t = tangent(rate, [0.0, 0.0, 1.0], gram, passed, terms=length**2)
    assert decision(t, ON, ON, OFF) == (ON, ON, SLIDING)
    there = followed(t, states(ON, ON, SLIDING))
    # Normal (1, −1), of length √2: ν = 0.2 / 2, and both rise at 0.5.
    np.testing.assert_allclose(there.nu[2], 0.1, rtol=1e-9)
    np.testing.assert_allclose(there.rate[:2], [0.5 * length**2] * 2, rtol=1e-9)


def test_gates_of_a_sample_sway_together():
    """A site that opens below another opens that, too, and so meets a larger signal than
    the mean one: gradient descent keeps it at its kink though Ψ < 0."""
    rate, signal, weight = np.array([0.09, 0.42]), np.array([-0.52, 1.0]), 1.3
    passed = np.array([[0.0, 0.0], [weight, 0.0]])
    t = tangent(rate, signal, passed=passed)
    there = followed(t, states(SLIDING, SLIDING))
    mean = signal[0] + weight * rate[1]
    np.testing.assert_allclose(there.opens[0], mean - rate[0], rtol=1e-6)
    assert there.opens[0] < 0 and there.below[0]
    assert decision(t, SLIDING, SLIDING) == (SLIDING, SLIDING)

    # Gradient descent on −rate·x + signal·(max(x₀, 0), max(x₁ + w max(x₀, 0), 0))
    x, on = np.zeros(2), []
    for _ in range(20_000):
        first, second = x[0] > 0, x[1] + weight * max(x[0], 0) > 0
        below = signal[0] + weight * signal[1] * second
        x = x + rate - [below * first, signal[1] * second]
        on.append([first, second])
    share = np.mean(on[10_000:], axis=0)
    assert 0.1 < share[0] < 0.5 and np.abs(x).max() < 2, (share, x)


def test_what_sways_has_no_say_in_which_multipliers_are_in_range():
    """Three kinks in a plane: ν₀ + ν₂/√2 = 0.1 and ν₁ + ν₂/√2 = 0.5, of which ν₂ is free.
    The third one's −0.5 − ν₂ and ν₂ are least at −0.25, where ν₀ = 0.28 is above c₀ = 0.2.
    """
    x = np.array([[1.0, 0.0], [0.0, 1.0], [np.sqrt(0.5), np.sqrt(0.5)]])
    t = tangent(x @ np.array([0.1, 0.5]), [0.2, 1.0, -0.5], x @ x.T)
    sliding = states(SLIDING, SLIDING, SLIDING)
    alone = followed(t, sliding)
    assert alone.room[2] < -0.2 and alone.room[0] < -1e-3
    third = jnp.arange(PLACES) == 2
    there = jax.jit(lambda t, state: regime(t, state, lambda _: third))(t, sliding)
    assert there.sways[2] and there.room[0] >= 0 and there.room[1] >= 0
    held = x.T @ np.asarray(there.nu[:3])
    np.testing.assert_allclose(held, [0.1, 0.5], atol=1e-8)


# Networks with a kink that turns repelling, and whether that of its signal alone tells
# where descent goes on.
TURNING = [
    ([3, 3, 3, 1], 12, True),
    pytest.param([2, 3, 3, 1], 12, False, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("widths, seed, told", TURNING)
def test_verified_flows_end_where_gradient_descent_does(widths, seed, told):
    """By ten times less with ten times smaller steps."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(16, widths[0])), rng.normal(size=(16, widths[-1]))
    weights = [
        jnp.asarray(rng.normal(size=(b, a)) / np.sqrt(a))
        for a, b in zip(widths[:-1], widths[1:], strict=True)
    ]
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    net, t1 = gf.nets.MLP.from_weights(weights), 40.0
    flow = gf.GradientFlow(problem)
    gaps = []
    for verified in (True, False):
        solver = gf.solvers.ExactKinks(rtol=1e-8, verified=verified)
        exact = gf.solve(flow, net, t1=t1, ts=[t1], solver=solver)
        for step in (1e-3, 1e-4) if verified else (1e-4,):
            descent = gf.descend(problem, net, step, round(t1 / step))
            gaps.append(distance(exact.final, descent.final))
        if verified:
            assert int(exact.certificate.choices) == 0
            assert exact.certificate.energy_residual < 1e-5
    assert gaps[1] < 2e-4 and 7 < gaps[0] / gaps[1] < 14, gaps
    assert (gaps[2] < 2e-5) if told else (gaps[2] > 1e-3), gaps


def distance(a, b):
    a, b = (np.concatenate([np.ravel(w) for w in net.weights]) for net in (a, b))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def test_choices_are_counted_and_said():
    """Smooth flows meet none."""
    data = gf.data.circle(8)
    net = gf.nets.MLP([2, 4, 1], key=jax.random.key(0), activation="identity")
    problem = gf.Problem(data, gf.losses.squared)
    traj = gf.solve(gf.GradientFlow(problem), net, t1=1.0)
    assert int(traj.certificate.choices) == 0 and "choices" not in traj.summary()
