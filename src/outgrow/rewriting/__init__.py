"""Which rewrites are right? Laws, one a module, and the derivation that applies them."""
