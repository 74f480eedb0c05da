"""What is learnt of jobs and GPUs."""
