"""Parameters of :mod:`clients.fedgh`. No torch."""

from clients.params.prototypes import ProtoSource, PrototypeParams


class FedGHParams(PrototypeParams):
    """The node's side of FedGH."""

    proto_source: ProtoSource = "after_training"
