"""What pytest is to leave alone: the scripts bring a module of PyTorch's name, which other tests would then find."""

collect_ignore = ["scripts"]
