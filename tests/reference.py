"""Naive NumPy versions of what gfdyn computes: loops and textbook formulas.

Imports nothing of gfdyn or jax, so that agreement means something. A network is a list of
weight matrices and a list with the slope (ReLU 0, identity 1) of each hidden layer.
"""

import numpy as np


# --- Networks -------------------------------------------------------------------------


def activate(z, slope):
    return z if z > 0 else slope * z


def derivative(z, slope):
    return 1.0 if z > 0 else slope


def random_weights(widths, seed=0):
    rng = np.random.default_rng(seed)
    shapes = zip(widths[1:], widths[:-1], strict=True)
    return [rng.normal(size=shape) / np.sqrt(shape[1]) for shape in shapes]


def forward(weights, slopes, x):
    """Outputs (N, k), and the pre-activations (N, n_l) of each hidden layer."""
    outputs, hidden = [], [[] for _ in slopes]
    for a in x:
        for w, slope, zs in zip(weights[:-1], slopes, hidden, strict=True):
            zs.append(w @ a)
            a = np.array([activate(z, slope) for z in zs[-1]])
        outputs.append(weights[-1] @ a)
    return np.array(outputs), [np.array(zs) for zs in hidden]


def backprop(weights, slopes, x, cotangents):
    """The gradient of sum(cotangents * f(x)) in each weight matrix."""
    gradients = [np.zeros_like(w) for w in weights]
    for a, signal in zip(x, cotangents, strict=True):
        entering, factors = [a], []
        for w, slope in zip(weights[:-1], slopes, strict=True):
            z = w @ entering[-1]
            entering.append(np.array([activate(zi, slope) for zi in z]))
            factors.append(np.array([derivative(zi, slope) for zi in z]))
        for layer in reversed(range(len(weights))):
            gradients[layer] += np.outer(signal, entering[layer])
            if layer > 0:
                signal = factors[layer - 1] * (weights[layer].T @ signal)
    return gradients


def gated_forward(weights, gates, x):
    """Outputs (N, k) through given gates (N, n_l), and what enters each layer."""
    entering = [x]
    for w, gate in zip(weights[:-1], gates, strict=True):
        entering.append(gate * (entering[-1] @ w.T))
    return entering[-1] @ weights[-1].T, entering


def gated_backprop(weights, gates, x, cotangents):
    """The gradient of sum(cotangents * f(x)) through given gates, in one row."""
    _, entering = gated_forward(weights, gates, x)
    signal, gradients = cotangents, []
    for layer in reversed(range(len(weights))):
        gradients.insert(0, signal.T @ entering[layer])
        if layer:
            signal = gates[layer - 1] * (signal @ weights[layer])
    return flatten(gradients)


def batch_norm_forward(weights, gains, shifts, x, eps):
    """Of ReLU layers with batch normalisation: outputs, and what each layer sees: its
    inputs, the normalised pre-activations, the scale, the pre-activations after γ and β."""
    a, seen = x, []
    for w, gain, shift in zip(weights[:-1], gains, shifts, strict=True):
        z = a @ w.T
        centred = z - z.mean(axis=0)
        scale = 1 / np.sqrt((centred**2).mean(axis=0) + eps)
        n = centred * scale
        h = gain * n + shift
        seen.append((a, n, scale, h))
        a = np.maximum(h, 0)
    return a @ weights[-1].T, a, seen


def batch_norm_backprop(weights, gains, shifts, x, cotangents, eps, detach):
    """The gradients of sum(cotangents * f(x)) in weights, γ and β, of each channel; with
    the scale taken for a constant if `detach`."""
    _, last, seen = batch_norm_forward(weights, gains, shifts, x, eps)
    in_weights, in_gains, in_shifts = [cotangents.T @ last], [], []
    signal = cotangents @ weights[-1]
    for w, gain, (a, n, scale, h) in zip(
        reversed(weights[:-1]), reversed(gains), reversed(seen), strict=True
    ):
        signal = signal * (h > 0)
        in_gains.insert(0, (signal * n).sum(axis=0))
        in_shifts.insert(0, signal.sum(axis=0))
        signal = gain * signal
        through = 0 if detach else n * (signal * n).mean(axis=0)
        signal = scale * (signal - signal.mean(axis=0) - through)
        in_weights.insert(0, signal.T @ a)
        signal = signal @ w
    return in_weights, in_gains, in_shifts


# --- Losses of one sample: value and gradient -----------------------------------------


def squared(f, y):
    return sum((fa - ya) ** 2 for fa, ya in zip(f, y, strict=True)) / 2, f - y


def linear(f, y):
    return -sum(fa * ya for fa, ya in zip(f, y, strict=True)), -y


def exponential(f, y):
    return sum(np.exp(-y * f)), -y * np.exp(-y * f)


def logistic(f, y):
    return sum(np.log(1 + np.exp(-y * f))), -y / (1 + np.exp(y * f))


def cross_entropy(f, y):
    p = np.exp(f) / sum(np.exp(f))
    return -np.log(sum(p * y)), p - y


LOSSES = {
    "squared": squared,
    "linear": linear,
    "exponential": exponential,
    "logistic": logistic,
    "cross_entropy": cross_entropy,
}


def cost(loss, outputs, y, reduction="mean"):
    values = [LOSSES[loss](f, t)[0] for f, t in zip(outputs, y, strict=True)]
    return sum(values) / (len(y) if reduction == "mean" else 1)


def cost_gradient(loss, outputs, y, reduction="mean"):
    rows = [LOSSES[loss](f, t)[1] for f, t in zip(outputs, y, strict=True)]
    return np.array(rows) / (len(y) if reduction == "mean" else 1)


def risk(loss, weights, slopes, x, y, reduction="mean"):
    return cost(loss, forward(weights, slopes, x)[0], y, reduction)


def risk_gradient(loss, weights, slopes, x, y, reduction="mean"):
    outputs = forward(weights, slopes, x)[0]
    return backprop(weights, slopes, x, cost_gradient(loss, outputs, y, reduction))


def descended(x, y, weights, t1, steps):
    """Plain gradient descent of two layers of ReLU and the squared loss, to `t1`."""
    a, b = map(np.array, weights)
    for _ in range(steps):
        z = x @ a.T
        h = np.maximum(z, 0)
        r = (h @ b.T - y) / len(x)
        down = (r @ b) * (z > 0)
        a, b = a - t1 / steps * down.T @ x, b - t1 / steps * r.T @ h
    return a, b


def localized_risk(loss, weights, slopes, x, y, reduction="mean"):
    outputs = forward(weights, slopes, x)[0]
    return np.sum(cost_gradient(loss, 0 * outputs, y, reduction) * outputs)


# --- Curvature ------------------------------------------------------------------------


def flatten(weights):
    return np.concatenate([w.ravel() for w in weights])


def unflatten(theta, weights):
    ends = np.cumsum([w.size for w in weights])[:-1]
    parts = np.split(theta, ends)
    return [part.reshape(w.shape) for part, w in zip(parts, weights, strict=True)]


def central_differences(function, theta, h):
    """The derivative of `function` along each axis, (size, ...)."""
    axes = h * np.eye(theta.size)
    return np.array([(function(theta + e) - function(theta - e)) / (2 * h) for e in axes])


def risk_hessian(loss, weights, slopes, x, y, h=1e-5):
    """Central differences of the gradient: only where no gate flips within h."""

    def gradient(theta):
        return flatten(risk_gradient(loss, unflatten(theta, weights), slopes, x, y))

    hessian = central_differences(gradient, flatten(weights), h)
    return (hessian + hessian.T) / 2


# --- Matrices -------------------------------------------------------------------------


def singular_values(w, k=None):
    s = np.linalg.svd(w, compute_uv=False)
    return s if k is None else np.concatenate([s, np.zeros(k)])[:k]


def stable_rank(w):
    return np.sum(w**2) / singular_values(w)[0] ** 2


def tail(w):
    return 1 - singular_values(w)[0] ** 2 / np.sum(w**2)


def effective_rank(w):
    p = singular_values(w) / sum(singular_values(w))
    return np.exp(-sum(pi * np.log(pi) for pi in p if pi > 0))


def neuron_balance(before, after):
    units = range(before.shape[0])
    return np.array([sum(after[:, i] ** 2) - sum(before[i, :] ** 2) for i in units])


def alignment(before, after):
    u = np.linalg.svd(before)[0][:, 0]
    v = np.linalg.svd(after)[2][0]
    return abs(u @ v)


def pairs(weights):
    return list(zip(weights[:-1], weights[1:], strict=True))


# --- Layers on data -------------------------------------------------------------------


def nonlinearity(weights, slopes, x):
    ratios = []
    for z, slope in zip(forward(weights, slopes, x)[1], slopes, strict=True):
        change = [(activate(zi, slope) - zi) ** 2 for zi in z.ravel()]
        ratios.append(sum(change) / np.sum(z**2))
    return np.array(ratios)


def kink_count(weights, slopes, x, threshold=1e-6):
    counts = []
    entering = x
    for w, slope in zip(weights[:-1], slopes, strict=True):
        z = np.array([[row @ a for row in w] for a in entering])
        count = 0
        for a, zs in zip(entering, z, strict=True):
            for row, zi in zip(w, zs, strict=True):
                size = np.linalg.norm(row) * np.linalg.norm(a)
                count += slope != 1 and size > 0 and abs(zi) <= threshold * size
        counts.append(count)
        entering = np.array([[activate(zi, slope) for zi in zs] for zs in z])
    return np.array(counts)


def margin(outputs, y, classes):
    """The smallest y f, or f_c minus the largest other output."""
    if not classes:
        return min(np.ravel(y * outputs))
    rows = zip(outputs, y, strict=True)
    return min(f[t == 1][0] - max(f[t == 0]) for f, t in rows)
