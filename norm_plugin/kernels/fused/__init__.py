"""One file a norm that has a fused form, with the stem of the norm's file."""
