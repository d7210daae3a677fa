"""A step in which writing over an operand takes longer."""

from outgrow.ir.graph import Graph
from outgrow.ir.text import parse_graph


def normalised(strides: str = "16,1,8,4", dtype: str = "f32", groups: int = 2) -> Graph:
    """The backward of a group normalisation of four channels, while something waits for the end."""
    here = f"{dtype}[1,4,2,2]:[{strides}]"
    return parse_graph(
        f"""
        storage s input 16
        storage k 64
        storage x 64
        storage g 64
        storage m 16
        storage d 64
        storage y 64
        storage z 4
        value %s: s@0 f32[4]
        %k: k@0 f32[16] = my.zero(%s)
        %x: x@0 {here} = my.one(%s)
        %g: g@0 {here} = my.two(%s)
        %m: m@0 f32[1,{groups}] = my.three(%s)
        norm: %d: d@0 {here}, _, _ = aten.native_group_norm_backward.default(%g, %x, %m, %m, None, 1, 4, 4, {groups}, \
[True, False, False])
        %y: y@0 {here} = my.four(%d)
        %z: z@0 f32[1] = my.last(%k, %y)
        return %z
        """
    )
