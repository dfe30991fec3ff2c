"""The ops that tie programs together: weights by name, calls of outlined functions, launches of kernels."""

from collections.abc import Sequence
from typing import Any, Self

from xdsl.dialects.builtin import DenseArrayBase, StringAttr, SymbolRefAttr, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from dsv41c.errors import IRError
from dsv41c.ir.ops.syntax import PlainSyntax, Slot, parse_slots, print_slots, resolve_slots, slot_types_text
from dsv41c.ir.ops.table import Argument, Cost, Effect, OpRule, moved_bytes
from dsv41c.ir.types import TensorType, type_text

SOURCES = ("checkpoint", "derived")


@irdl_op_definition
class Weight(IRDLOperation, PlainSyntax):
    """A weight by name: `dsv41.weight {name = "layers.0.attn.wq_a.weight", source = "checkpoint"} : type`."""

    name = "dsv41.weight"
    symbol = attr_def(StringAttr, attr_name="name")
    source = attr_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        if self.source.data not in SOURCES:
            raise VerifyException(f"weight source '{self.source.data}' is unknown; supported are {', '.join(SOURCES)}")
        assert isinstance(self.result.type, TensorType)
        if self.result.type.symbols:
            raise VerifyException(f"weight '{self.symbol.data}' has symbolic sizes {self.result.type.text()}")


class _Invocation(IRDLOperation):
    """`dsv41.call @name(%a, none) {attributes} : (type, none) -> (type)`."""

    def slots(self) -> list[Slot]:
        """The arguments in order, None where one is absent."""
        raise NotImplementedError

    def _target_text(self) -> str:
        raise NotImplementedError

    @classmethod
    def _parse_target(cls, parser: Parser) -> Attribute:
        raise NotImplementedError

    @classmethod
    def _make(
        cls, target: Attribute, slots: Sequence[Slot], results: Sequence[Attribute], attributes: dict[str, Attribute]
    ) -> Self:
        raise NotImplementedError

    def print(self, printer: Printer) -> None:
        slots = self.slots()
        printer.print_string(f" {self._target_text()}(")
        print_slots(printer, slots)
        printer.print_string(")")
        printer.print_op_attributes(self.attributes)
        results = ", ".join(map(type_text, self.result_types))
        printer.print_string(f" : ({slot_types_text(slots)}) -> ({results})")

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        target = cls._parse_target(parser)
        position = parser.pos
        parser.parse_punctuation("(")
        unresolved = parse_slots(parser)
        parser.parse_punctuation(")")
        attributes = dict(parser.parse_optional_attr_dict())
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _type_or_none(parser))
        parser.parse_punctuation("->")
        results = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        slots = resolve_slots(parser, unresolved, types, position)
        return cls._make(target, slots, results, attributes)


def _type_or_none(parser: Parser) -> Attribute | None:
    return None if parser.parse_optional_keyword("none") else parser.parse_type()


@irdl_op_definition
class Call(_Invocation):
    """Runs an outlined function of the module: `dsv41.call @region_3(%x) : (type) -> (type)`."""

    name = "dsv41.call"
    inputs = var_operand_def()
    callee = prop_def(SymbolRefAttr)
    outputs = var_result_def()

    @classmethod
    def of(cls, callee: str, inputs: Sequence[SSAValue], results: Sequence[Attribute]) -> Self:
        return cls._make(SymbolRefAttr(callee), inputs, results, {})

    def slots(self) -> list[Slot]:
        return list(self.operands)

    def _target_text(self) -> str:
        return f"@{self.callee.root_reference.data}"

    @classmethod
    def _parse_target(cls, parser: Parser) -> Attribute:
        return SymbolRefAttr(parser.parse_symbol_name())

    @classmethod
    def _make(
        cls, target: Attribute, slots: Sequence[Slot], results: Sequence[Attribute], attributes: dict[str, Attribute]
    ) -> Self:
        present = [slot for slot in slots if slot is not None]
        if len(present) != len(slots):
            raise IRError("dsv41.call has an absent argument; functions take all their arguments")
        return cls.build(
            operands=[present], result_types=[list(results)], properties={"callee": target}, attributes=attributes
        )


@irdl_op_definition
class Launch(_Invocation):
    """Runs a kernel of the plan: `dsv41.launch "store"(%cache, %rows, none) {page = 8} : (...) -> (...)`.

    The kernel is an outlined function of the module, or a custom op by name with its non-tensor arguments as
    attributes.
    """

    name = "dsv41.launch"
    inputs = var_operand_def()
    kernel = prop_def(StringAttr)
    absent = opt_prop_def(DenseArrayBase)
    outputs = var_result_def()

    @classmethod
    def of(
        cls,
        kernel: str,
        inputs: Sequence[Slot],
        results: Sequence[Attribute],
        attributes: dict[str, Attribute] | None = None,
    ) -> Self:
        return cls._make(StringAttr(kernel), inputs, results, attributes or {})

    def slots(self) -> list[Slot]:
        slots: list[Slot] = list(self.operands)
        for place in self.absent.get_values() if self.absent is not None else ():
            slots.insert(int(place), None)
        return slots

    def _target_text(self) -> str:
        return str(self.kernel)

    @classmethod
    def _parse_target(cls, parser: Parser) -> Attribute:
        return StringAttr(parser.parse_str_literal())

    @classmethod
    def _make(
        cls, target: Attribute, slots: Sequence[Slot], results: Sequence[Attribute], attributes: dict[str, Attribute]
    ) -> Self:
        absent = [place for place, slot in enumerate(slots) if slot is None]
        properties: dict[str, Attribute] = {"kernel": target}
        if absent:
            properties["absent"] = DenseArrayBase.from_list(i64, absent)
        return cls.build(
            operands=[[slot for slot in slots if slot is not None]],
            result_types=[list(results)],
            properties=properties,
            attributes=attributes,
        )


def _declared(op: Operation, operands: Sequence[Argument]) -> Sequence[Argument]:
    # Weights, calls and launches carry no rule of their own: their declared types are the rule, checked by the
    # verifier against the callee and by the plan against the checkpoint.
    return ()


def _nothing(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    return Cost()


def _moved(op: Operation, operands: Sequence[Argument], results: Sequence[Argument]) -> Cost:
    return Cost(moved_bytes(operands), moved_bytes(results), {})


def _by_interpreter(op: Operation, operands: Sequence[Any]) -> Sequence[Any]:
    raise IRError(f"{op.name} needs its module and weights; run it through ir.interpreter.Interpreter")


RULES = [
    # Bytes of a weight are counted where it is read.
    OpRule(Weight, _declared, Effect(), _nothing, _by_interpreter),
    OpRule(Call, _declared, Effect(reads=("inputs",)), _moved, _by_interpreter),
    OpRule(Launch, _declared, Effect(reads=("inputs",)), _moved, _by_interpreter),
]
