"""The `gsub` command and what a training script imports (top floor)."""
