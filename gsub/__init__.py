"""The `gsub` command and what a training script imports (top floor)."""

__version__ = "0.1.0"
