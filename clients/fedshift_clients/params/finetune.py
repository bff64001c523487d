"""Parameters of :mod:`fedshift_clients.adapt.finetune`. No torch."""

from pydantic import Field

from fedshift_core.params import Params, Rounds


class FinetuneParams(Params):
    """Parameters of fine-tuning."""

    epochs: Rounds | None = Field(None, description="Local epochs before a test; null: `train.epochs`.")
