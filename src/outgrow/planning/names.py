"""What are the planners called? Told without importing them: they are compiled, and wrong usage is told at once."""

PLANNER_NAMES = ("search", "nnabla_window", "tflms_v1", "tflms_v2", "meng", "capuchin", "sqrt_checkpoint")
