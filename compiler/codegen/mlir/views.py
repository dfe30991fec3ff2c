"""The module of helper functions that the CPU runtime needs besides the kernels; it goes into a plan as views.vmfb."""

from dsv41c.compiler.codegen.mlir.iree import CpuTarget, compile_linalg

__all__ = ["VIEWS_TEXT", "compile_views"]

# span: a part of a buffer at any byte offset. IREE's Python binding can give a buffer a shape, but not cut it.
# device: the device itself, so that the runtime can keep it alive (see runtime/iree_device.py).
VIEWS_TEXT = """\
module @views {
  func.func @span(%source: !hal.buffer_view, %offset: i64, %n_bytes: i64) -> !hal.buffer_view {
    %element = hal.element_type<ui8> : i32
    %encoding = hal.encoding_type<dense_row_major> : i32
    %zero = arith.constant 0 : index
    %start = arith.index_cast %offset : i64 to index
    %size = arith.index_cast %n_bytes : i64 to index
    %buffer = hal.buffer_view.buffer<%source : !hal.buffer_view> : !hal.buffer
    %part = hal.buffer.subspan<%buffer : !hal.buffer>[%start, %size] : !hal.buffer
    %view = hal.buffer_view.create buffer(%part : !hal.buffer)[%zero, %size] shape([%size]) type(%element)
      encoding(%encoding) : !hal.buffer_view
    return %view : !hal.buffer_view
  }
  func.func @device() -> !hal.device {
    %zero = arith.constant 0 : index
    %device = hal.devices.get %zero : !hal.device
    return %device : !hal.device
  }
}
"""


def compile_views(target: CpuTarget | None = None) -> bytes:
    """The compiled helper module.

    Args:
        target: the CPU of the plan; the helpers hold no machine code, so it does not matter which.
    """
    return compile_linalg(VIEWS_TEXT, target or CpuTarget())
