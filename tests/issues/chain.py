"""A chain of launches with a wide value in the middle, for tests of tiles."""

from xdsl.dialects.builtin import ModuleOp

from dsv41c.ir.text import parse_module

NARROW, WIDE = 4, 16  # fp32 channels


def chain(rows: int) -> ModuleOp:
    """`step`: x, squared, four times side by side, its exponential cut back to the first channels."""
    x, y = f"!dsv41.tensor<[T, {NARROW}], f32>", f"!dsv41.tensor<[T, {WIDE}], f32>"
    symbols = f"attributes {{dsv41.symbols = {{T = [1, {rows}]}}}}"
    items = ", ".join([x] * (WIDE // NARROW))
    return parse_module(f"""
func.func @step(%x: {x}) -> {x} {symbols} {{
  %a = dsv41.launch "widen"(%x) : ({x}) -> ({y})
  %b = dsv41.launch "exp"(%a) : ({y}) -> ({y})
  %y = dsv41.launch "narrow"(%b) : ({y}) -> ({x})
  func.return %y : {x}
}}
func.func @widen(%x: {x}) -> {y} {symbols} {{
  %int1 = torch.constant.int 1
  %list = torch.prim.ListConstruct {", ".join(["%x"] * (WIDE // NARROW))} : ({items}) -> !torch.list<vtensor>
  %a = torch.aten.cat %list, %int1 : !torch.list<vtensor>, !torch.int -> {y}
  func.return %a : {y}
}}
func.func @exp(%x: {y}) -> {y} {symbols} {{
  %a = torch.aten.exp %x : {y} -> {y}
  func.return %a : {y}
}}
func.func @narrow(%x: {y}) -> {x} {symbols} {{
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %end = torch.constant.int {NARROW}
  %a = torch.aten.slice.Tensor %x, %int1, %int0, %end, %int1 : {y}, {", ".join(["!torch.int"] * 4)} -> {x}
  func.return %a : {x}
}}
""")
