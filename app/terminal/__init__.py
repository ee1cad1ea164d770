"""The commands of a shell: races, tuning, devices and saved runs, as text and files."""
