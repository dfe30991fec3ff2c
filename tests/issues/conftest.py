"""Faults that others shipped, each with a small input that shows its kind; helpers come from other test folders."""

import sys
from pathlib import Path

for folder in ("models", "compiler", "runtime", "serving", "triton"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

import interpreter  # noqa: E402

interpreter.correct()
