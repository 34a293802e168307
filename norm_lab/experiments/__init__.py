"""From a config to a result: scores, result files, tables."""
