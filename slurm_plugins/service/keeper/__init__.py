"""gsubd's other half, a process of its own: collects records, keeps the store, answers the HTTP API."""
