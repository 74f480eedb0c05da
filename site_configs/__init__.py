"""The site, declared: model, topology, examples, development cluster (ground floor)."""
