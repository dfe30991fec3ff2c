"""Faults that others shipped, each with a small input that shows its kind; helpers come from tests/models."""

import sys
from pathlib import Path

for folder in ("models", "compiler", "serving"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
