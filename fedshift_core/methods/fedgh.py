"""Parameters of :mod:`fedshift_clients.methods.fedgh`. No torch."""

from fedshift_core.methods.prototypes import ProtoSource, PrototypeParams


class FedGHParams(PrototypeParams):
    """The node's side of FedGH."""

    proto_source: ProtoSource = "after_training"
