"""The limits: read from recorded answers of three releases, and obeyed one by one."""
