"""The reference kernels by name; another name is an error that lists what there is."""

from __future__ import annotations

from dsv41c.errors import PlanError
from dsv41c.runtime.kernels import (
    definitions,
    experts,
    index_topk,
    linears,
    load,
    lookup,
    moe,
    rotary,
    sparse_attention,
    store,
)
from dsv41c.runtime.kernels.binding import ReferenceKernel

# Written for the target and measured, where the others are the op's definition.
_PORTABLE = {
    "attend": sparse_attention.bind_attend,
    "linears": linears.bind,
    "moe": moe.bind,
    "sparse_attention": sparse_attention.bind,
}
_REFERENCE = {
    "store": store.bind,
    "load": load.bind,
    "index_topk": index_topk.bind,
    "index_pool_topk": index_topk.bind_pool,
    "rotary": rotary.bind,
    "lookup": lookup.bind,
    "experts": experts.bind,
    **definitions.BINDINGS,
}
REFERENCE_KERNELS = {
    name: ReferenceKernel(name, band, bind)
    for band, kernels in (("portable", _PORTABLE), ("reference", _REFERENCE))
    for name, bind in kernels.items()
}


def find(name: str) -> ReferenceKernel:
    """The reference kernel of that name.

    Raises:
        PlanError: there is none.
    """
    kernel = REFERENCE_KERNELS.get(name)
    if kernel is None:
        raise PlanError(
            f"this runtime has no reference kernel {name}; it has {', '.join(sorted(REFERENCE_KERNELS))}; "
            "compile the plan with this release of dsv41c"
        )
    return kernel
