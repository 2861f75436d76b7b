"""Records of runs that never were: valid histories of any size, with labelled anomalies planted in them.

A checker that finds nothing is right, or blind. Here the truth is known beforehand, so how much it finds of each class,
and how much that is not there, can be counted, at the size of a real run. Nothing here says what is wrong with a
record: that is defined in `chaos.judge`, and a label is one of its findings.

`Shape` says what the history is like; `History` makes its rows, `write_history` the files of a record.
"""

from chaos.generator.history import Generated, History, write_history
from chaos.generator.planted import Planted, read_planted
from chaos.generator.shape import Layout, Shape

__all__ = ["Generated", "History", "Layout", "Planted", "Shape", "read_planted", "write_history"]
