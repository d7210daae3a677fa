"""How is a plan, or a step, shown? As tables, JSON, pages and pictures."""
