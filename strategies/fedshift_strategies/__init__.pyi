"""Made by `python benchmarks/reference_pages.py`: types of what the package makes when it is asked."""

from collections.abc import Callable
from typing import Literal, TypedDict, Unpack

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

class _Flower(TypedDict, total=False):
    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None
    evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None

class FDSE(FedAvg):
    """Merges extractors by the consensus of their updates, and gives each node a mixture of erasers like its own."""

    def __init__(
        self,
        *,
        tau: float = 0.5,
        buffers: tuple[str, ...],
        **flower: Unpack[_Flower],
    ) -> None: ...

class FPL(FedAvg):
    """Averages weights as FedAvg does; clusters the nodes' prototypes of each class by FINCH."""

    def __init__(
        self,
        **flower: Unpack[_Flower],
    ) -> None: ...

class Fed3R(FedAvg):
    """Solves the ridge regression of all nodes' sums; with ``ridge=validation`` nodes score each of a grid."""

    def __init__(
        self,
        *,
        ridge: float | Literal["validation"] = 0.3,
        feature_dim: int,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedCGS(FedAvg):
    """Solves the Gaussian head of all nodes' sums."""

    def __init__(
        self,
        *,
        shrinkage: float = 0.001,
        feature_dim: int,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedCode(FedAvg):
    """Averages encoders as FedAvg does, semantic prototypes by class, and clusters style prototypes."""

    def __init__(
        self,
        *,
        alpha: float = 20.0,
        finch_partition: Literal["last", "first"] = "last",
        global_model: Literal["off", "average_heads"] = "off",
        use_semcl: bool = True,
        use_stycl: bool = True,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedDyn(FedAvg):
    """The plain mean of the nodes' weights, moved on by d, how far nodes have moved in all rounds."""

    def __init__(
        self,
        *,
        alpha: float = 0.01,
        alpha_by_images: bool = False,
        scores: Literal["cloud", "mean"] = "cloud",
        buffers: tuple[str, ...],
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedGH(FedAvg):
    """Trains a head for all nodes on their class prototypes."""

    def __init__(
        self,
        *,
        server_batch: int = 1,
        server_epochs: int = 1,
        server_lr: float = 0.01,
        seed: int = 0,
        num_classes: int,
        feature_dim: int,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedHEAL(FedAvg):
    """Leaves inconsistent updates out, parameter by parameter, and weighs nodes by their distance."""

    def __init__(
        self,
        *,
        beta: float = 0.4,
        mask_buffers: bool = True,
        tau: float = 0.3,
        use_fair: bool = True,
        use_mask: bool = True,
        buffers: tuple[str, ...],
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedICON(FedAvg):
    """FedAvg that tells the nodes whether a round trains the encoder or the classifier."""

    def __init__(
        self,
        *,
        classifier_rounds: int = 10,
        classifier_training: Literal["federated_personal", "federated", "local"] = "federated_personal",
        lie: bool = True,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedIIR(FedAvg):
    """Averages weights as FedAvg does, and head gradients over nodes and rounds."""

    def __init__(
        self,
        *,
        ema: float = 0.95,
        lambda_iir: float = 0.001,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedMLP(FedAvg):
    """Averages weights as FedAvg does; P^k is the plain mean over the nodes that hold class k."""

    def __init__(
        self,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedOMG(FedAvg):
    """Moves the weights by FedAvg's change and by a mixture of the nodes' changes that lags behind in it."""

    def __init__(
        self,
        *,
        kappa: float = 0.25,
        momentum: float = 0.5,
        rate: float = 25.0,
        server_lr: float = 1.0,
        steps: int = 25,
        buffers: tuple[str, ...],
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedPAC(FedAvg):
    """Averages weights as FedAvg does and class prototypes by images; combines a head for each node."""

    def __init__(
        self,
        *,
        combine_heads: bool = True,
        lambda_align: float = 1.0,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedPLVM(FedAvg):
    """Averages weights as FedAvg does; clusters all nodes' prototypes of each class by FINCH once more."""

    def __init__(
        self,
        *,
        cluster_globally: bool = True,
        lambda_proto: float = 100.0,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedPall(FedAvg):
    """Trains a classifier and an amplifier on the nodes' mixed features."""

    def __init__(
        self,
        *,
        hidden: int = 512,
        lambda_adv: float = 0.1,
        lambda_con: float = 0.1,
        server_batch: int = 32,
        server_epochs: int = 3,
        server_lr: float = 0.01,
        take: float = 1.0,
        seed: int = 0,
        num_classes: int,
        feature_dim: int,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedProc(FedAvg):
    """Averages weights as FedAvg does, and the nodes' class prototypes; tells the nodes alpha of the round."""

    def __init__(
        self,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedProto(FedAvg):
    """Averages the nodes' class prototypes, and as FedAvg does whatever weights they share."""

    def __init__(
        self,
        *,
        prototype_mean: Literal["weighted", "plain"] = "weighted",
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedSA(FedAvg):
    """Moves anchors towards the nodes' prototypes; averages whatever weights they share, as FedAvg does."""

    def __init__(
        self,
        *,
        momentum: float = 0.9999,
        predict_by: Literal["head", "prototype"] = "head",
        seed: int = 0,
        num_classes: int,
        feature_dim: int,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedSeProto(FedAvg):
    """Averages weights as FedAvg does, and the nodes' semantic prototypes class by class (Eq. 3)."""

    def __init__(
        self,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedTGP(FedAvg):
    """Trains global prototypes on those of the nodes; averages whatever weights they share, as FedAvg does."""

    def __init__(
        self,
        *,
        margin_cap: float = 100.0,
        server_batch: int = 10,
        server_epochs: int = 100,
        server_lr: float = 0.01,
        seed: int = 0,
        num_classes: int,
        feature_dim: int,
        **flower: Unpack[_Flower],
    ) -> None: ...

class FedTHE(FedAvg):
    """Averages body and global head as FedAvg does, and the nodes' mean features, each node the same."""

    def __init__(
        self,
        *,
        personal_head: bool = True,
        **flower: Unpack[_Flower],
    ) -> None: ...

class I2PFL(FedAvg):
    """Averages weights as FedAvg does and turns the nodes' class prototypes into global ones."""

    def __init__(
        self,
        *,
        dist: Literal["l2sq", "l2"] = "l2sq",
        ema: float = 0.99,
        ema_weight_on: Literal["past", "current"] = "past",
        inter_proto: Literal["reweight", "average", "finch"] = "reweight",
        use_ema: bool = True,
        **flower: Unpack[_Flower],
    ) -> None: ...

class Scaffold(FedAvg):
    """The plain mean of the nodes' weights, and a control variate that goes with them."""

    def __init__(
        self,
        *,
        control: bool = True,
        buffers: tuple[str, ...],
        **flower: Unpack[_Flower],
    ) -> None: ...

class StableFDG(FedAvg):
    """Averages weights as FedAvg does; passes each node another one's style."""

    def __init__(
        self,
        *,
        shift: float = 0.5,
        seed: int = 0,
        **flower: Unpack[_Flower],
    ) -> None: ...
