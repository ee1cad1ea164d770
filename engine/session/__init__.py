"""The one place where a run happens, and what a run that was cut off still owes."""
