"""Settings of a run: the schema, reading and layering them, writing them; knows no torch."""
