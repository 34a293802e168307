"""The way from a YAML file, overrides and options to checked specifications of runs."""
