"""torch's constants and lists: `torch.constant.*` and `torch.prim.ListConstruct`, spelled as torch-mlir spells them."""

import math
import re
import struct
from collections.abc import Sequence
from typing import Any, Self

from xdsl.dialects.builtin import BoolAttr, FloatAttr, IntegerAttr, StringAttr, f64, i64
from xdsl.ir import Attribute, Operation
from xdsl.irdl import IRDLOperation, attr_def, irdl_op_definition, opt_attr_def, result_def, traits_def, var_operand_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from dsv41c.ir.ops.syntax import parse_slots, print_slots, resolve_slots
from dsv41c.ir.ops.table import Argument, Cost, Effect, OpRule
from dsv41c.ir.types import (
    BOOL,
    FLOAT,
    INT,
    NONE,
    STR,
    TensorType,
    TorchBool,
    TorchFloat,
    TorchInt,
    TorchList,
    TorchNone,
    TorchStr,
    type_text,
)

Scalar = int | float | bool | str | None


class _Constant(IRDLOperation):
    """A constant in the form `torch.constant.int 1 {attributes}`."""

    @property
    def python(self) -> Scalar:
        """The constant's Python value."""
        raise NotImplementedError

    def _literal(self) -> str:
        raise NotImplementedError

    @classmethod
    def _parse_value(cls, parser: Parser) -> Self:
        raise NotImplementedError

    def print(self, printer: Printer) -> None:
        if literal := self._literal():
            printer.print_string(f" {literal}")
        printer.print_op_attributes(self.attributes, reserved_attr_names=("value",))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        op = cls._parse_value(parser)
        op.attributes.update(parser.parse_optional_attr_dict())
        return op


@irdl_op_definition
class ConstantInt(_Constant):
    """`%int1 = torch.constant.int 1`."""

    name = "torch.constant.int"
    value = attr_def(IntegerAttr)
    result = result_def(TorchInt)
    traits = traits_def(Pure())

    @classmethod
    def of(cls, value: int) -> Self:
        return cls.build(result_types=[INT], attributes={"value": IntegerAttr(value, i64)})

    @property
    def python(self) -> int:
        return self.value.value.data

    def _literal(self) -> str:
        return str(self.python)

    @classmethod
    def _parse_value(cls, parser: Parser) -> Self:
        return cls.of(parser.parse_integer(allow_boolean=False))


@irdl_op_definition
class ConstantFloat(_Constant):
    """`%float1.0 = torch.constant.float 1.0`; values that have no decimal form are hexadecimal bits."""

    name = "torch.constant.float"
    value = attr_def(FloatAttr)
    result = result_def(TorchFloat)
    traits = traits_def(Pure())

    @classmethod
    def of(cls, value: float) -> Self:
        return cls.build(result_types=[FLOAT], attributes={"value": FloatAttr(value, f64)})

    @property
    def python(self) -> float:
        return self.value.value.data

    def _literal(self) -> str:
        return float_text(self.python)

    @classmethod
    def _parse_value(cls, parser: Parser) -> Self:
        return cls.of(parse_float(parser))


@irdl_op_definition
class ConstantBool(_Constant):
    """`%true = torch.constant.bool true`."""

    name = "torch.constant.bool"
    value = attr_def(IntegerAttr)
    result = result_def(TorchBool)
    traits = traits_def(Pure())

    @classmethod
    def of(cls, value: bool) -> Self:
        return cls.build(result_types=[BOOL], attributes={"value": BoolAttr.from_bool(value)})

    @property
    def python(self) -> bool:
        return bool(self.value.value.data)

    def _literal(self) -> str:
        return "true" if self.python else "false"

    @classmethod
    def _parse_value(cls, parser: Parser) -> Self:
        return cls.of(parser.parse_boolean())


@irdl_op_definition
class ConstantStr(_Constant):
    """`%str = torch.constant.str "floor"`."""

    name = "torch.constant.str"
    value = attr_def(StringAttr)
    result = result_def(TorchStr)
    traits = traits_def(Pure())

    @classmethod
    def of(cls, value: str) -> Self:
        return cls.build(result_types=[STR], attributes={"value": StringAttr(value)})

    @property
    def python(self) -> str:
        return self.value.data

    def _literal(self) -> str:
        return str(self.value)

    @classmethod
    def _parse_value(cls, parser: Parser) -> Self:
        return cls.of(parser.parse_str_literal())


@irdl_op_definition
class ConstantNone(_Constant):
    """`%none = torch.constant.none`."""

    name = "torch.constant.none"
    value = opt_attr_def(Attribute)
    result = result_def(TorchNone)
    traits = traits_def(Pure())

    @classmethod
    def of(cls) -> Self:
        return cls.build(result_types=[NONE])

    @property
    def python(self) -> None:
        return None

    def _literal(self) -> str:
        return ""

    @classmethod
    def _parse_value(cls, parser: Parser) -> Self:
        return cls.of()


@irdl_op_definition
class ListConstruct(IRDLOperation):
    """`%list = torch.prim.ListConstruct %a, %b : (!torch.int, !torch.int) -> !torch.list<int>`."""

    name = "torch.prim.ListConstruct"
    items = var_operand_def()
    result = result_def(TorchList)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        wanted = str(self.result.type.data)
        for item in self.items:
            word = _item_word(item.type)
            absent = word == "none" and wanted.startswith("optional<")
            if word != wanted and f"optional<{word}>" != wanted and not absent:
                raise VerifyException(f"an item of type {item.type} in a list of {wanted}")

    def print(self, printer: Printer) -> None:
        if self.items:
            printer.print_string(" ")
            print_slots(printer, self.items)
        printer.print_op_attributes(self.attributes)
        types = ", ".join(type_text(item.type) for item in self.items)
        printer.print_string(f" : ({types}) -> {type_text(self.result.type)}")

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        position = parser.pos
        unresolved = parse_slots(parser)
        attributes = dict(parser.parse_optional_attr_dict())
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        parser.parse_punctuation("->")
        result = parser.parse_type()
        items = [item for item in resolve_slots(parser, unresolved, types, position) if item is not None]
        return cls.build(operands=[items], result_types=[result], attributes=attributes)


def _item_word(type_: Attribute) -> str:
    if isinstance(type_, TensorType):
        return "vtensor"
    return type_.name.removeprefix("torch.")


def float_text(value: float) -> str:
    """Spell a float so that MLIR reads back the same bits."""
    if not math.isfinite(value):
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    text = repr(value)
    return text if "." in text else re.sub(r"e", ".0e", text, count=1) if "e" in text else f"{text}.0"


def parse_float(parser: Parser) -> float:
    """Parse what `float_text` spells."""
    value = parser.parse_number()
    if isinstance(value, float):
        return value
    return float(struct.unpack("<d", struct.pack("<Q", value))[0]) if abs(value) > 2**53 else float(value)


def constant(value: Scalar) -> Operation:
    """Make the constant op for a Python scalar."""
    match value:
        case None:
            return ConstantNone.of()
        case bool():
            return ConstantBool.of(value)
        case int():
            return ConstantInt.of(value)
        case float():
            return ConstantFloat.of(value)
        case str():
            return ConstantStr.of(value)


def constant_value(op: Operation) -> Scalar:
    """Give the Python value of a constant op."""
    assert isinstance(op, _Constant)
    return op.python


def is_constant(op: Operation) -> bool:
    """Whether an op is a `torch.constant.*`."""
    return isinstance(op, _Constant)


def _constant_result(op: Operation, operands: Sequence[Any]) -> list[Any]:
    return [constant_value(op)]


def _list_result(op: Operation, operands: Sequence[Any]) -> list[Any]:
    return [list(operands)]


def _free(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    return Cost()


RULES = [
    *(
        OpRule(op, shape=_constant_result, effect=Effect(), cost=_free, reference=_constant_result)
        for op in (ConstantInt, ConstantFloat, ConstantBool, ConstantStr, ConstantNone)
    ),
    OpRule(ListConstruct, shape=_list_result, effect=Effect(), cost=_free, reference=_list_result),
]
