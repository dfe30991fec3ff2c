"""The runtime runs where no part of the compiler is installed."""

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import importlib.abc, sys

BLOCKED = ("xdsl", "torch_mlir", "iree.compiler", "networkx", "dsv41c.ir", "dsv41c.passes", "dsv41c.compiler")

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in BLOCKED):
            raise ImportError(f"{name} is blocked")
        return None

sys.meta_path.insert(0, Blocker())
import dsv41c
engine = dsv41c.load(sys.argv[1])
from dsv41c.runtime.sampling import SamplingParams
print(engine.generate([[5, 9, 2]], SamplingParams(max_new_tokens=2))[0].tokens)
loaded = [name for name in sys.modules if name in BLOCKED]
assert not loaded, loaded
"""


def test_serves_without_the_compiler(finished_plan: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(finished_plan)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(0, 0)\n"
