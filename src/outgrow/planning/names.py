"""What are planners and kernels called? Told without importing them: it takes time, and wrong usage is told at once."""

PLANNER_NAMES = (
    "search",
    "nnabla_window",
    "tflms_v1",
    "tflms_v2",
    "meng",
    "capuchin",
    "sqrt_checkpoint",
    "serenity",
    "olla",
)
"""The search, then the planners of papers."""

KERNELS = ("eager", "inductor")
"""What runs a step's arithmetic: torch's own operators, or what Inductor makes of those that it can join."""

SOLVER_SECONDS = 60.0
"""How long a planner's solver may take by default."""
