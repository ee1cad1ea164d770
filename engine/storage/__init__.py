"""What is written to files: the CSV reports and the run file."""
