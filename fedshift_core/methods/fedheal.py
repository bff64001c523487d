"""Parameters of FedHEAL."""

from fedshift_core.params import Fraction, Params, Probability


class FedHEALParams(Params):
    """Parameters of FedHEAL; nodes train as FedAvg's do. Both ``use_`` switches off are FedAvg."""

    use_mask: bool = True
    """Whether inconsistent updates of single parameters are left out."""
    use_fair: bool = True
    """Whether nodes weigh by how far they move; false: by number of images."""
    tau: Fraction = 0.3
    """Share of the node's earlier rounds, of which more must have gone the way of an update for it to stay; 0: one such
    round is enough.
    """
    beta: Probability = 0.4
    """How fast the step of a node's weight follows its distance; 0: not at all."""
    mask_buffers: bool = True
    """Whether BatchNorm's statistics are masked too, as in the code; false: they are averaged."""
