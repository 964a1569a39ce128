"""What a person and a machine see of a run: its line, its summary, its trackers, its traces."""
