"""Regions of aten ops to linalg through torch-mlir, and to CPU code through IREE."""
