"""What the commands of the corpora share, from raw files to the input of fairseq-train."""
