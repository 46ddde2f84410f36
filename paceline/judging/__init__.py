"""Runs judged after the training: `paceline.evaluate`, `paceline.predict`, and what they return."""
