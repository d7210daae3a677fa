"""The laws, all of them, by the decision that each carries out.

    move        order.py       run ops earlier that conflict with nothing they pass
    take apart  apart.py       compute the results of an op one after the other
    by layout   by_layout.py   do without an operand of which only the layout matters
    reuse       reuse.py       write a result over the operand that dies there
    recompute   recompute.py   build a storage again from what made it
    stow        stow.py        let a storage rest in the next tier between steps
    swap        swap.py        let a storage rest in the next tier between two uses

All are exact: they keep every bit. Freeing a storage after its last use needs no law, it is what the graph
means (`ir.graph`, Residence).
"""

from collections.abc import Mapping
from typing import Any

from outgrow.plan import ByLayout, Decision, Move, Recompute, Reuse, Stow, Swap, TakeApart
from outgrow.rewriting.apart import take_apart
from outgrow.rewriting.by_layout import by_layout
from outgrow.rewriting.order import move
from outgrow.rewriting.recompute import recompute
from outgrow.rewriting.reuse import reuse
from outgrow.rewriting.rule import Law
from outgrow.rewriting.stow import stow
from outgrow.rewriting.swap import swap

LAWS: Mapping[type[Decision], Law[Any]] = {
    law.decision: law
    for law in (
        Law("move", Move, move),
        Law("take apart", TakeApart, take_apart),
        Law("by layout", ByLayout, by_layout),
        Law("reuse", Reuse, reuse),
        Law("recompute", Recompute, recompute),
        Law("stow", Stow, stow),
        Law("swap", Swap, swap),
    )
}
