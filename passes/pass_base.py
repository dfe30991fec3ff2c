"""What a pass is, what it is given and what it gives back."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from dsv41c.errors import CompileError
from dsv41c.ir.builder import has_one_row
from dsv41c.ir.ops.aten import AtenOp
from dsv41c.ir.ops.custom import CustomOp
from dsv41c.ir.transient import Scratch
from dsv41c.models.config import ModelConfig

# What a module has become: traced programs, then lists of launches.
STAGES = ("traced", "launches")


@dataclass(frozen=True)
class PassContext:
    """What passes may ask for besides the module.

    Attributes:
        target: the target's name.
        config: the model's config, where the program came from one.
        fusible: names of the custom ops that `define` has a definition for.
        define: gives an op's definition for its operand types, or None for an op that has none.
        define_parts: gives the functions that a kernel of the runtime calls for its parts, by the attribute that
            names each; none for an op that has no parts.
        whole: those of `fusible` that are better off as kernels of their own, unless there is a single row.
        alone: those of `fusible` that get a function of their own, which layers of all kinds then share.
        scratch: bytes that a kernel of the target allocates while it runs, see `ir.transient.Scratch`.
        composed: those whose definition holds ops that get a function of their own, so that it must be seen earlier.
    """

    target: str = "cpu"
    config: ModelConfig | None = None
    fusible: frozenset[str] = frozenset()
    define: Callable[[CustomOp | AtenOp], FuncOp | None] = lambda op: None
    define_parts: Callable[[CustomOp], Mapping[str, FuncOp]] = lambda op: {}
    whole: frozenset[str] = frozenset()
    alone: frozenset[str] = frozenset()
    composed: frozenset[str] = frozenset()
    scratch: Scratch = lambda kernel, shapes, attrs: 0

    def whole_in(self, func: FuncOp) -> frozenset[str]:
        """The custom ops of a program that run as kernels of their own although they have a definition."""
        return frozenset() if has_one_row(func) else self.whole


@dataclass(frozen=True)
class PassResult:
    """Whether a pass changed the module, and how often each of its patterns matched."""

    changed: bool
    matches: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Tolerance:
    """How far a pass may move a value: by absolute + relative * |before|; both 0 ask for equal bits."""

    absolute: float = 0.0
    relative: float = 0.0


@dataclass(frozen=True)
class Pass:
    """A rewrite from module to module; its fields are its options.

    A pass changes the module in place. The manager gives it a module that nobody else holds, and does everything that
    is the same for all passes: verification, dumps, timing, counts, provenance, comparison.
    """

    name: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ("traced",)
    produces: ClassVar[str | None] = None
    tolerance: ClassVar[Tolerance] = Tolerance()
    # False for a pass after which the programs have other inputs or outputs, so that there is nothing to compare.
    comparable: ClassVar[bool] = True
    # True for a pass that adds programs: the passes after it are compared on these too.
    extends: ClassVar[bool] = False

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Rewrite the module."""
        raise NotImplementedError

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """Say how often each pattern must match in this module; None for a pass without such a rule."""
        return None

    def text(self) -> str:
        """Spell the pass with its options, as pipelines do: `name{option=value}`."""
        changed = [f"{f.name}={_option_text(getattr(self, f.name))}" for f in fields(self) if self._differs(f.name)]
        return self.name + (f"{{{','.join(changed)}}}" if changed else "")

    def digest(self) -> str:
        """Hash the pass's source and options; a plan lists it for every pass that made it."""
        source = Path(inspect.getfile(type(self))).read_bytes()
        return hashlib.sha256(source + b"\0" + self.text().encode()).hexdigest()

    def _differs(self, name: str) -> bool:
        default = next(f.default for f in fields(self) if f.name == name)
        return bool(getattr(self, name) != default)


def make_pass(pass_class: type[Pass], options: Mapping[str, str]) -> Pass:
    """Make a pass from option texts.

    Raises:
        CompileError: an option that the pass does not have, or a value that is not of its type.
    """
    known = {f.name: f.type for f in fields(pass_class)}
    for name in options:
        if name not in known:
            raise CompileError(f"pass '{pass_class.name}' has no option '{name}'; it has {sorted(known) or 'none'}")
    return pass_class(**{name: _option(pass_class, name, known[name], text) for name, text in options.items()})


def _option(pass_class: type[Pass], name: str, kind: object, text: str) -> int | float | bool | str:
    word = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    try:
        match word:
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "bool" if text in ("true", "false"):
                return text == "true"
            case "str":
                return text
    except ValueError:
        pass
    raise CompileError(f"option '{name}' of pass '{pass_class.name}' is '{text}'; it must be of type {word}")


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
