"""The laws, all of them, by the decision that each carries out.

    move        order.py       run ops earlier that conflict with nothing they pass
    reuse       reuse.py       write a result over the operand that dies there
    recompute   recompute.py   build a storage again from what made it
    swap        swap.py        let a storage rest in the next tier between two uses

All four are exact: they keep every bit. Freeing a storage after its last use needs no law, it is what the graph
means (`ir.graph`, Residence).
"""

from collections.abc import Mapping

from outgrow.plan import Move, Recompute, Reuse, Swap
from outgrow.rewriting.order import move
from outgrow.rewriting.recompute import recompute
from outgrow.rewriting.reuse import reuse
from outgrow.rewriting.rule import Law
from outgrow.rewriting.swap import swap

LAWS: Mapping[type, Law] = {
    law.decision: law
    for law in (
        Law("move", Move, move),
        Law("reuse", Reuse, reuse),
        Law("recompute", Recompute, recompute),
        Law("swap", Swap, swap),
    )
}
