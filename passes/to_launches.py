"""Turns calls and custom ops into launches: the form that a plan stores."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from dsv41c.ir.builder import functions
from dsv41c.ir.ops.custom import CustomOp
from dsv41c.ir.ops.program import Call, Launch
from dsv41c.passes.pass_base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class ToLaunches(Pass):
    """Turns calls and custom ops into launches: the form that a plan stores.

    What:
        %a = dsv41.call @region_0(%x) : ...            ->  %a = dsv41.launch "region_0"(%x) : ...
        %c = dsv41.store %c0, %a, %s {page = 16} ...   ->  %c = dsv41.launch "store"(%c0, %a, %s) {page = 16} ...

    Why: the runtime knows one thing, a kernel on arguments.

    Needs: programs of calls, custom ops, weights and constants.

    Does not handle: aten ops that are not outlined; the plan's writer refuses them by name.
    """

    name: ClassVar[str] = "to-launches"
    produces: ClassVar[str | None] = "launches"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Replace all calls and custom ops; counts `launch`."""
        launches = 0
        for func in functions(module).values():
            for op in list(func.body.block.ops):
                launch = _launch(op)
                if launch is None:
                    continue
                block = op.parent_block()
                assert block is not None
                block.insert_op_before(launch, op)
                for old, new in zip(op.results, launch.results, strict=True):
                    new._name = old._name
                    old.replace_all_uses_with(new)
                op.detach()
                op.erase()
                launches += 1
        return PassResult(launches > 0, {"launch": launches})


def _launch(op: Operation) -> Launch | None:
    if isinstance(op, Call):
        return Launch.of(op.callee.root_reference.data, op.slots(), op.result_types, dict(op.attributes))
    if isinstance(op, CustomOp):
        return Launch.of(op.name.removeprefix("dsv41."), op.slots(), op.result_types, dict(op.attributes))
    return None
