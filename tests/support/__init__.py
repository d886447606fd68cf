"""What several test packages share: server processes, the strict run, the corpus of recorded data."""
