"""The text form: one op a line, exact SSA names, types with layout, origin as an attribute; `parse(print(m)) == m`."""

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Span

from dsv41c.errors import IRError
from dsv41c.ir.dialect import make_context
from dsv41c.ir.names import set_name, unused
from dsv41c.ir.ops.torch_ops import float_text
from dsv41c.ir.types import type_text


class ProgramPrinter(Printer):
    """Prints names exactly, types from memory, and origins only when asked."""

    def __init__(self, stream: StringIO, origins: bool) -> None:
        super().__init__(stream)
        self._origins = origins
        self._used: set[str] = set()

    def print_op(self, op: Operation) -> None:
        if op.name == "func.func":
            self._used = set()
            self._ssa_values = {}
            self._next_valid_name_id = [0]
        super().print_op(op)

    def print_ssa_value(self, value: SSAValue) -> str:
        name = self._ssa_values.get(value)
        if name is None:
            name = unused(value.name_hint, self._used) if value.name_hint else self._get_new_valid_name_id()
            self._used.add(name)
            self._ssa_values[value] = name
        self.print_string(f"%{name}")
        return name

    def print_attribute(self, attribute: Attribute) -> None:
        match attribute:
            case IntegerAttr() if str(attribute.type) == "i64":
                self.print_string(str(attribute.value.data))
            case FloatAttr() if str(attribute.type) == "f64":
                self.print_string(float_text(attribute.value.data))
            case _:
                super().print_attribute(attribute)

    def print_op_attributes(
        self,
        attributes: Mapping[str, Attribute],
        *,
        reserved_attr_names: Iterable[str] = (),
        print_keyword: bool = False,
    ) -> bool:
        hidden = reserved_attr_names if self._origins else (*reserved_attr_names, "origin")
        return super().print_op_attributes(attributes, reserved_attr_names=hidden, print_keyword=print_keyword)


class ProgramParser(Parser):
    """Keeps SSA names exactly as they stand in the text."""

    def _register_ssa_definition(self, name: str, values: Sequence[SSAValue], span: Span) -> None:
        super()._register_ssa_definition(name, values, span)
        if not name.isdigit():
            for value in values:
                set_name(value, name)


def print_module(module: ModuleOp | Operation, origins: bool = True) -> str:
    """Print a module, function or op.

    Args:
        origins: whether ops show where they come from; without, the text is shorter and parses to ops without origin.
    """
    stream = StringIO()
    ProgramPrinter(stream, origins).print_op(module)
    return stream.getvalue() + "\n"


def parse_module(text: str, file: str = "<text>") -> ModuleOp:
    """Parse a module's text.

    Raises:
        IRError: with place and reason.
    """
    try:
        return ProgramParser(make_context(), text, file).parse_module()
    except (ParseError, VerifyException) as error:
        raise IRError(f"program text does not parse:{error}") from error


def line_of(op: Operation) -> str:
    """Spell one op on one line, for error messages."""
    if op.regions:
        return op.name
    return print_module(op, origins=True).strip().splitlines()[0]


__all__ = ["line_of", "parse_module", "print_module", "type_text"]
