"""What norms share: the contract, the registry, batch statistics, windows, workers."""
