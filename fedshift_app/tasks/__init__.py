"""Tasks other than classification, a room each, made as features are (``fedshift_core.features``).

A task gives a node's client the loss of its targets (``client.class_loss``) and how they are scored
(``client.grading``), and states what it needs of a method. Classification is what all does without one.
"""

from typing import Literal

#: Their names, also of classification, which has no room.
TaskName = Literal["classification", "segmentation"]
