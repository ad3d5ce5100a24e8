"""Equinox networks, written against gates; see `AbstractNet`."""

from .._by_layer import in_layers as in_layers, in_one_row as in_one_row
from ._activation import (
    FrozenGate as FrozenGate,
    PiecewiseLinear as PiecewiseLinear,
    activation as activation,
    identity as identity,
    leaky_relu as leaky_relu,
    relu as relu,
)
from ._architectures import architecture as architecture
from ._as_dag import as_dag as as_dag
from ._as_layered import as_layered as as_layered
from ._base import AbstractNet as AbstractNet
from ._batch_norm import BatchNorm as BatchNorm, batch_norm as batch_norm
from ._blocks import (
    Block as Block,
    conv as conv,
    dense as dense,
    densely_connected as densely_connected,
    resnet_branch as resnet_branch,
    resnet_diagonal as resnet_diagonal,
    resnet_free as resnet_free,
    resnet_identity as resnet_identity,
    sequential as sequential,
)
from ._branches import (
    branch_dot as branch_dot,
    check_branches as check_branches,
    scale_branches as scale_branches,
    scale_outputs as scale_outputs,
)
from ._coincidence import Coincidence as Coincidence, coinciding_kinks as coinciding_kinks
from ._composed import (
    AbstractFixedMap as AbstractFixedMap,
    AveragePool as AveragePool,
    ChannelsLast as ChannelsLast,
    Composed as Composed,
)
from ._connections import (
    AbstractConnection as AbstractConnection,
    Conv as Conv,
    Dense as Dense,
    Diagonal as Diagonal,
    Identity as Identity,
)
from ._dag import Dag as Dag
from ._foreign import check_net as check_net
from ._from_torch import from_torch as from_torch
from ._initialisation import (
    balanced as balanced,
    dominated as dominated,
    fan_in_uniform as fan_in_uniform,
    gaussian as gaussian,
    norm as norm,
    scaled_to_norm as scaled_to_norm,
    zero_output as zero_output,
)
from ._invariant import Invariant as Invariant
from ._joined_samples import (
    joined as joined,
    passing_alone as passing_alone,
    with_ratios as with_ratios,
)
from ._layered import Layer as Layer, LayeredNet as LayeredNet
from ._mlp import MLP as MLP, check_mlp as check_mlp
from ._rescaled import (
    Rescaled as Rescaled,
    scaled_output as scaled_output,
    with_rates as with_rates,
)
from ._statistics import normalised_by as normalised_by
from ._weight_mask import weight_mask as weight_mask
from ._weight_normalised import WeightNormalised as WeightNormalised
from ._wrapped import Wrapped as Wrapped, wrap as wrap
