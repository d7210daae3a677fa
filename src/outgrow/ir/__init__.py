"""What is a step? Storages, values and instructions, their text, and when they are right."""
