"""dsv41c compiles DeepSeek-V4.1-Flash, and any config of its architecture, to a plan that a small runtime serves."""

from typing import Any


def compile(*args: Any, **options: Any) -> Any:
    """Compiles a checkpoint to a plan; see `dsv41c.compiler.driver.compile_checkpoint` for arguments and result."""
    # Imported here, so that serving a plan never loads the compiler.
    from dsv41c.compiler.driver import compile_checkpoint

    return compile_checkpoint(*args, **options)


def load(*args: Any, **options: Any) -> Any:
    """Loads a plan for serving; see `dsv41c.runtime.api.load` for arguments and result."""
    from dsv41c.runtime.api import load as load_plan

    return load_plan(*args, **options)
