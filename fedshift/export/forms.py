"""The forms in which a model is saved. No torch: the command line reads it."""

from typing import Literal, get_args

Form = Literal["safetensors", "torchscript", "onnx", "exported"]
FORMS: tuple[Form, ...] = get_args(Form)
#: The file of each form, beside ``model.json`` and the card.
FILES: dict[Form, str] = {
    "safetensors": "model.safetensors", "torchscript": "model.pt", "onnx": "model.onnx", "exported": "model.pt2",
}  # fmt: skip
