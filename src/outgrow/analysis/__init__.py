"""What holds of a graph: when storages live, what ops cost, what depends on what, what happens when."""
