"""What norms, placements and models declare: names, options and flags, readable without torch.

A norm and a placement declare themselves in their own files. The registries import these files;
here their source is read instead, which takes milliseconds where importing torch takes seconds. So
commands can refuse a wrong name and list what there is at once. A test compares the two.
"""
