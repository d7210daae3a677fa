"""What are the planners called? Told without importing them: they are compiled, and wrong usage is told at once."""

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

SOLVER_SECONDS = 60.0
"""How long a planner's solver may take, where nothing else is said."""
