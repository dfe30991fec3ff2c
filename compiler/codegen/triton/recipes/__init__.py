"""Recipes: the launches of family kernels that compute one op of the lowered program.

A recipe takes an op and a `DeviceBuilder`. Kernels are filled from the op's types, so any config of the architecture
has them; their names hold what they are filled with.
"""

from __future__ import annotations

from collections.abc import Mapping

from dsv41c.compiler.codegen.triton.device_builder import LoweredOp, Recipe
from dsv41c.compiler.codegen.triton.recipes import attention, caches, index, products, rows
from dsv41c.errors import CompileError

__all__ = ["RECIPES", "recipe_for"]

RECIPES: Mapping[str, Recipe] = {
    **attention.RECIPES,
    **caches.RECIPES,
    **index.RECIPES,
    **products.RECIPES,
    **rows.RECIPES,
}


def recipe_for(op: LoweredOp, target: str) -> Recipe:
    """The recipe of an op.

    Raises:
        CompileError: there is none.
    """
    recipe = RECIPES.get(op.kernel)
    if recipe is None:
        raise CompileError(
            f"no kernels for 'dsv41.{op.kernel}' on {target}; there are recipes for {', '.join(sorted(RECIPES))}: "
            "leave out the pass that makes the op, or compile for 'cpu'"
        )
    return recipe
