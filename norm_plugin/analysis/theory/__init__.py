"""Claims of the papers about a Transformer at the start of training, measured: one file a claim."""
