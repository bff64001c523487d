"""Scores of the nodes' own models right after local training (``evaluate.client_models``)."""

from typing import Annotated, Literal

from fedshift_core.disclosure import SUM
from fedshift_core.features import Case, Feature, FeatureOptions, Key
from fedshift_core.params import OFF_IS_A_WORD
from fedshift_core.plural import plural
from fedshift_core.wire import names as wire


class Options(FeatureOptions):
    """Rounds in which nodes score their own models."""

    section = "evaluate"
    #: FedCode, section 7: LTA, ATA, GATA, GASA, CPRR.
    client_models: Annotated[Literal["off", "last", "every"], OFF_IS_A_WORD] = "off"
    """Rounds in which nodes score their models right after local training: off, last, or every."""

    def scores_clients(self, server_round: int, rounds: int) -> bool:
        """Tell whether nodes score their own models in this round (from 1) of ``rounds``."""
        return self.client_models == "every" or (self.client_models == "last" and self.is_late(server_round, rounds))

    def scorers(self, nodes: int) -> int:
        """Return of how many models a round has scores, in a run of so many nodes."""
        return 1 if self.client_models == "off" else nodes


def _rules(case: Case) -> str:
    evaluate, models = case.config.evaluate, Options.read(case.config).client_models
    if not evaluate.test and models != "off":
        return f"evaluate.test=false: evaluate.client_models={models} scores test images; allowed is off"
    if evaluate.patience and models == "last":
        return (
            f"evaluate.patience={evaluate.patience} may end a run before its last {plural(evaluate.last, 'round')}, "
            "which evaluate.client_models=last scores; allowed are off and every"
        )
    return ""


FEATURE = Feature(
    "client-scores",
    "Scores of the nodes' own models right after local training",
    "evaluate.client_models",
    "fedshift_app.features.client_scores.server:ClientModels",
    "fedshift_app.features.client_scores.node:ClientModelsOnNode",
    show="fedshift_app.features.client_scores.show:show",
    place=130,
    options=Options,
    rules=_rules,
    train=(Key(wire.LOCAL_DOMAINS, "list of text", "domains on whose test images the node scores its model"),),
    train_reply=(
        Key(wire.LOCAL_CORRECT, "int", "correct predictions on a domain's test images"),
        Key(wire.LOCAL_COUNT, "int", "test images of a domain", images=True),
        Key(wire.LOCAL_OWN_CORRECT, "int", "correct predictions on the node's own test set"),
        Key(wire.LOCAL_OWN_COUNT, "int", "images of the node's own test set", images=True),
    ),
    word=SUM,
    tells="correct predictions on test images",
)
