"""What the commands of the corpora share: from raw files to what fairseq-train reads."""
