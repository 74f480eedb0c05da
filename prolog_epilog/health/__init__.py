"""A table of checks of a node's health, one line each, and who runs them ahead of need."""
