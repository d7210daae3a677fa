"""The laws, all of them, by the decision that each carries out.

    move        order.py       run ops earlier that conflict with nothing they pass
    take apart  apart.py       compute the results of an op one after the other
    by rows     by_rows.py     let two ops run as one, some rows at a time
    by operand  by_operand.py  put the operands of an op into its result one after the other
    by layout   by_layout.py   do without an operand of which only the layout matters
    reuse       reuse.py       write a result over the operand that dies there
    recompute   recompute.py   build a storage again from what made it
    stow        stow.py        let a storage rest in the next tier between steps
    swap        swap.py        let a storage rest in the next tier between two uses

All are exact: they keep every bit. Freeing a storage after its last use needs no law, it is what the graph
means (`ir.graph`, Residence).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from outgrow.plan import ByLayout, ByOperand, ByRows, Decision, Move, Recompute, Reuse, Stow, Swap, TakeApart
from outgrow.rewriting.apart import take_apart
from outgrow.rewriting.by_layout import by_layout
from outgrow.rewriting.by_operand import by_operand
from outgrow.rewriting.by_rows import by_rows
from outgrow.rewriting.draft import Draft
from outgrow.rewriting.order import move
from outgrow.rewriting.recompute import recompute
from outgrow.rewriting.reuse import reuse
from outgrow.rewriting.stow import stow
from outgrow.rewriting.swap import swap


class Law(NamedTuple):
    """The name of a law, and what carries out a decision on a draft."""

    name: str
    apply: Callable[[Draft, Any], None]


LAWS: Mapping[type[Decision], Law] = {
    Move: Law("move", move),
    TakeApart: Law("take apart", take_apart),
    ByRows: Law("by rows", by_rows),
    ByOperand: Law("by operand", by_operand),
    ByLayout: Law("by layout", by_layout),
    Reuse: Law("reuse", reuse),
    Recompute: Law("recompute", recompute),
    Stow: Law("stow", stow),
    Swap: Law("swap", swap),
}
