"""The page about a run: one file, no script, nothing loaded from anywhere, light and dark, narrow and wide.

`chaos.report.model` says what is on it, `chaos.report.drawing` where lines and bars are, the templates how it looks.
Nothing here finds anything out: what is drawn was judged and counted before.
"""
