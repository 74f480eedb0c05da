"""The commands of `gsub`, one module each."""
