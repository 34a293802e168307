"""The lab, which trains, scores and compares models of norm_plugin, in a checkout of it.

It imports :mod:`norm_plugin`, which never imports it. Its commands are verbs of ``norm-plugin``.
"""
