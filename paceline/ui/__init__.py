"""What people see of a run: everything is read from the run folder, and rich is used here only."""
