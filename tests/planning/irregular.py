"""Irregular steps: a random forward graph of branches and joins, its backward, and updates at the end."""

from random import Random

from outgrow.ir.graph import Graph
from outgrow.ir.text import parse_graph


def irregular(seed: int, ops: int) -> Graph:
    """A step of about this many ops: each forward op reads one to three of the latest values, at any width.

    Its backward op reads the gradients of its consumers and its own operands, and makes one gradient for each operand
    and one of its parameter; all parameters are updated at the end, as an optimizer's loop captures it.
    """
    random = Random(seed)
    count = max(2, ops // 4)
    lines = ["storage x input 4", "value %x: x@0 f32[1]"]
    sizes: dict[str, int] = {"x": 1}
    reads: list[tuple[str, ...]] = []
    for at in range(count):
        known = list(sizes)[-8:]
        operands = tuple(random.sample(known, min(len(known), random.randint(1, 3))))
        sizes[f"a{at}"] = random.choice((16, 64, 256, 1024)) * random.randint(1, 4)
        lines += [f"storage w{at} parameter 64", f"value %w{at}: w{at}@0 f32[16]"]
        lines += [f"storage a{at} {4 * sizes[f'a{at}']}"]
        names = ", ".join(f"%{name}" for name in (*operands, f"w{at}"))
        lines.append(f"f{at}: %a{at}: a{at}@0 f32[{sizes[f'a{at}']}] = my.forward({names})")
        reads.append(operands)
    gradients: dict[str, list[str]] = {}
    for at in reversed(range(count)):
        results: list[str] = []
        for place, operand in enumerate(reads[at]):
            name = f"g{at}.{place}"
            lines.append(f"storage {name} {4 * sizes[operand]}")
            results.append(f"%{name}: {name}@0 f32[{sizes[operand]}]")
        lines.append(f"storage d{at} 64")
        results.append(f"%d{at}: d{at}@0 f32[16]")
        names = ", ".join(f"%{name}" for name in (*gradients.get(f"a{at}", ()), *reads[at], f"w{at}"))
        lines.append(f"b{at}: {', '.join(results)} = my.backward({names})")
        for place, operand in enumerate(reads[at]):
            gradients.setdefault(operand, []).append(f"g{at}.{place}")
    for at in range(count):
        lines += [f"storage t{at} 64", f"s{at}: %t{at}: t{at}@0 f32[16] = my.scale(%d{at})"]
        lines.append(f"u{at}: %u{at}: w{at}@1 f32[16] = aten.add_.Tensor(%w{at}, %t{at})")
    return parse_graph("\n".join(lines))
