"""Networks that recipes name. A checkpoint rebuilds its own from here, so a class keeps its name and arguments.

Only module classes may be public names of this file: penstock imports what a checkpoint names from here unasked.
"""

from penstock.train.nets.bert import Bert
from penstock.train.nets.images import RepVggNet, ResidualNet
from penstock.train.nets.rescaled import Rescaled
from penstock.train.nets.rows import Mlp
from penstock.train.nets.texts import TextCnn, TextRnn

__all__ = ["Bert", "Mlp", "RepVggNet", "Rescaled", "ResidualNet", "TextCnn", "TextRnn"]
