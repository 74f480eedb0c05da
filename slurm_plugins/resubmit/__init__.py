"""Whether a failed attempt is tried again, and how: policy as pure functions over frozen values."""
