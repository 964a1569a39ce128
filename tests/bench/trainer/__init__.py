"""The trainer's figures (`make bench-trainer`)."""
