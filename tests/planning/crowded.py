"""A step that is crowded for a while: what was made before has to make room for four ops, and is needed behind them."""

from outgrow.ir.graph import Graph
from outgrow.ir.text import parse_graph


def crowded(*, is_rebuilt: bool) -> Graph:
    """100 bytes `p` that no op may make again, then four results of 204 bytes, and at last an op that reads `p`.

    Where `is_rebuilt`, it reads 100 bytes `q` that were made of `p` before. All of them draw, and so keep their order.
    """
    rebuilt = "storage q 100\n%q: q@0 f32[25] = my.two(%p)" if is_rebuilt else ""
    fills = "".join(f"\nstorage f{at} 204\nfill{at}: %f{at}: f{at}@0 f32[51] = my.fill(%x) writes g" for at in range(4))
    return parse_graph(
        f"""
        storage x input 4
        storage g generator 4
        storage p 100
        storage d 4
        value %x: x@0 f32[1]
        one: %p: p@0 f32[25] = my.one(%x) writes g
        {rebuilt}{fills}
        last: %d: d@0 f32[1] = my.last({"%q" if is_rebuilt else "%p"}) writes g
        return %d
        """
    )
