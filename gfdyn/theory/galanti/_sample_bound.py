"""How many samples generalisation takes, by counting networks: Appendix D."""

import math


def sample_bound(accuracy: float, confidence: float, bits: int, parameters: int) -> float:
    r"""$\frac{2}{\epsilon^2}\Big(kW\ln 2 + \ln\frac2\delta\Big)$ samples suffice to learn
    nets of W parameters of k bits each to an excess risk ε with probability 1 − δ.

    Galanti & Poggio, App. D, after Anthony & Bartlett, Thm 16.2.

    Args:
        accuracy: ε > 0.
        confidence: δ in (0, 1).
        bits: k.
        parameters: W.

    Raises:
        ValueError: on numbers out of range.
    """
    if not accuracy > 0:
        raise ValueError(f"accuracy={accuracy} must be positive.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must lie in (0, 1).")
    if bits < 1 or parameters < 1:
        raise ValueError(f"bits={bits} and parameters={parameters} must be 1 or more.")
    return 2 / accuracy**2 * (bits * parameters * math.log(2) + math.log(2 / confidence))
