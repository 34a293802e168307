"""The language of the toy corpus: its grammar and its words."""
