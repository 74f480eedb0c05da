"""What happened, kept: one schema for SQLite and PostgreSQL, written by gsubd alone."""
