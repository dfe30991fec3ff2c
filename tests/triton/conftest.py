"""Kernels run in Triton's interpreter, with its casts and products corrected."""

import interpreter

interpreter.correct()
