"""The forms of a saved model. The command line imports this module, so it does not import torch."""

from typing import Literal, get_args

Form = Literal["safetensors", "torchscript", "onnx", "exported"]
FORMS: tuple[Form, ...] = get_args(Form)
#: The file of each form; the folder also holds ``model.json`` and the card.
FILES: dict[Form, str] = {
    "safetensors": "model.safetensors",
    "torchscript": "model.pt",
    "onnx": "model.onnx",
    "exported": "model.pt2",
}
