"""How do others decide? Planners of papers, one a module, and what several of them share."""
