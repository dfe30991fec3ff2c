"""The one text form of ops, torch-mlir's: `name %a, none, %b {attribute = 1} : type, none, type -> type`."""

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer

from dsv41c.ir.types import type_text

Slot = SSAValue | None


class PlainSyntax(Operation):
    """An op in the common text form; an absent optional operand is spelled `none` in both lists."""

    # Attributes with a place of their own in the text; they are not printed in braces.
    SPELLED: ClassVar[tuple[str, ...]] = ()

    def slots(self) -> Sequence[Slot]:
        """List the operands in order, None where an optional one is absent."""
        return self.operands

    @classmethod
    def from_slots(
        cls, slots: Sequence[Slot], result_types: Sequence[Attribute], attributes: dict[str, Attribute]
    ) -> Self:
        """Make the op from operands in order, None for an absent one."""
        return cls.create(
            operands=[slot for slot in slots if slot is not None], result_types=result_types, attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        slots = self.slots()
        if slots:
            printer.print_string(" ")
            print_slots(printer, slots)
        printer.print_op_attributes(self.attributes, reserved_attr_names=self.SPELLED)
        sides = [slot_types_text(slots), ", ".join(map(type_text, self.result_types))]
        printer.print_string(" : " + " -> ".join(side for side in sides if side))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        position = parser.pos
        unresolved = parse_slots(parser)
        attributes = dict(parser.parse_optional_attr_dict())
        types: list[Attribute | None] = []
        results: list[Attribute | None] = []
        parser.parse_punctuation(":")
        first = _parse_type_list(parser)
        if unresolved:
            types = first
            results = _parse_type_list(parser) if parser.parse_optional_punctuation("->") else []
        else:
            results = first
        slots = resolve_slots(parser, unresolved, types, position)
        return cls.from_slots(slots, [result for result in results if result is not None], attributes)


def print_slots(printer: Printer, slots: Sequence[Slot]) -> None:
    """Print operands with commas, `none` for absent ones."""
    for index, slot in enumerate(slots):
        if index:
            printer.print_string(", ")
        if slot is None:
            printer.print_string("none")
        else:
            printer.print_ssa_value(slot)


def slot_types_text(slots: Sequence[Slot]) -> str:
    """Spell the types of operands, `none` for absent ones."""
    return ", ".join("none" if slot is None else type_text(slot.type) for slot in slots)


def parse_slots(parser: Parser) -> list[UnresolvedOperand | None]:
    """Parse a possibly empty list of operands and `none`."""
    slots: list[UnresolvedOperand | None] = []
    if (first := parser.parse_optional_unresolved_operand()) is None and not parser.parse_optional_keyword("none"):
        return slots
    slots.append(first)
    while parser.parse_optional_punctuation(","):
        slots.append(None if parser.parse_optional_keyword("none") else parser.parse_unresolved_operand())
    return slots


def resolve_slots(
    parser: Parser, unresolved: Sequence[UnresolvedOperand | None], types: Sequence[Attribute | None], position: int
) -> list[Slot]:
    """Bind parsed operands to values; counts and the places of `none` must agree with the type list."""
    if len(unresolved) != len(types):
        parser.raise_error(f"{len(unresolved)} operands but {len(types)} operand types", position, parser.pos)
    slots: list[Slot] = []
    for operand, type_ in zip(unresolved, types, strict=True):
        if operand is None or type_ is None:
            if operand is not None or type_ is not None:
                parser.raise_error("'none' must stand in both the operands and their types", position, parser.pos)
            slots.append(None)
            continue
        slots.append(parser.resolve_operand(operand, type_))
    return slots


def _parse_type_list(parser: Parser) -> list[Attribute | None]:
    types: list[Attribute | None] = [_parse_type_or_none(parser)]
    while parser.parse_optional_punctuation(","):
        types.append(_parse_type_or_none(parser))
    return types


def _parse_type_or_none(parser: Parser) -> Attribute | None:
    return None if parser.parse_optional_keyword("none") else parser.parse_type()
