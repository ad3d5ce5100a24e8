"""Types of arrays that many rooms share."""

from jaxtyping import Array, Bool, Float, Int


Scalar = Float[Array, ""]
Count = Int[Array, ""]
Vector = Float[Array, "_"]
Matrix = Float[Array, "_ _"]

# Of each branch of a network that is a sum of them
Branch = Float[Array, " branches"]

# f(x_i; θ) of all samples
Outputs = Float[Array, "samples outputs"]

# Of each hidden layer: a value at each site, a unit on a sample; which sites; and gates
Sites = tuple[Float[Array, "samples _"], ...]
Mask = tuple[Bool[Array, "samples _"], ...]
Gates = tuple[Float[Array, "samples _"], ...]
