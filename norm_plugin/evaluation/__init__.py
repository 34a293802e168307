"""From checkpoints to a table: averaging, scoring, results with their provenance.

``average``      average the last checkpoints of a run, with ``running_stats`` and ``reestimate``
``building``     the model of a checkpoint, built anew by fairseq
``checkpoints``  load, save and number checkpoints; repair a folder after a kill
``fold``         a checkpoint to decode with, its norms folded into the maps after them
``generate_log`` the output of fairseq-generate
``bleu``         fairseq's BLEU4, compounds split, detokenising, sacrebleu
``score``        all of these scores of the output of fairseq-generate
``results``      one JSON file for a finished run
``tables``       Markdown tables from those files, also into the README
"""
