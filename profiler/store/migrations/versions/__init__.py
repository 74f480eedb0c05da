"""One step of the schema a file, numbered."""
