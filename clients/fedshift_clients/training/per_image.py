"""Gradients of single images, clipped and summed: what ``privacy.name=dp-sgd`` adds noise to.

Opacus finds the norm of each image's gradient by hooks on the layers (Yousefpour et al., 2021). Of linear layers no
gradient of an image is formed ("ghost clipping", Goodfellow, 2015; Li et al., ICLR 2022): a second backward pass gives
the sum, in which each image's loss has the factor that its norm allows.
"""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift_clients.models.depthwise import quicken, unquicken
from fedshift_clients.models.networks import SplitModel, set_training
from fedshift_clients.training.arrays import cloned, put
from fedshift_core.errors import ConfigError, NotFiniteError
from fedshift_core.limits import some

_CLOSE = 1e-3  # relative, between the norms of Opacus and of autograd; of norms below _SMALL, absolute in terms of it
_SMALL = 1e-4
MOST_NAMED = 3  # modules that an error names
_ROUNDING = 1e-6  # added to a norm before a factor is made of it, so that rounding does not exceed the bound


class PerImage:
    """Sums clipped gradients of a model's images; use it by :func:`per_image`."""

    def __init__(self, model: nn.Module, hooks: Any) -> None:
        self._model, self._hooks = model, hooks
        self._learning = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def clipped_sum(self, losses: Tensor, norm: float) -> None:
        r"""Put the sum of the images' clipped gradients into ``grad`` of each parameter that learns.

        .. math:: \sum_i\min\left(1,\frac{C}{\|g_i\|_2}\right)g_i,\quad g_i=\nabla_w\ell_i

        Args:
            losses: The loss of each image, each of its image alone, (B,); the forward pass was made within
                :func:`per_image`.
            norm: C; the norm is over all parameters that learn.

        Raises:
            NotFiniteError: If one is not finite.
        """
        norms = self.norms(losses)
        if not bool(torch.isfinite(norms).all()):
            raise NotFiniteError("an image's gradient is not finite (training diverged? try a lower train.lr)")
        factors = (norm / (norms + _ROUNDING)).clamp(max=1.0)
        self._clear()
        self._hooks.disable_hooks()
        try:
            (factors.detach() * losses).sum().backward()  # type: ignore[no-untyped-call]
        finally:
            self._hooks.enable_hooks()

    def norms(self, losses: Tensor) -> Tensor:
        """Return the norm of each image's gradient, (B,); the graph is kept."""
        self._clear()
        losses.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
        norms = [parameter._norm_sample for parameter in self._learning if hasattr(parameter, "_norm_sample")]
        return torch.stack(norms).norm(dim=0) if norms else torch.zeros_like(losses)

    def off(self) -> None:
        """Let further backward passes of this forward pass go without hooks."""
        self._hooks.disable_hooks()

    def _clear(self) -> None:
        self._model.zero_grad()
        for parameter in self._learning:
            if hasattr(parameter, "_norm_sample"):
                del parameter._norm_sample


@functools.cache
def _hooks() -> Any:
    """Return Opacus's hooks, which read maps in any layout; without this they find wrong gradients of convolutions."""
    # Here: it takes a second to import, and only such a run needs it.
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    class Hooks(GradSampleModuleFastGradientClipping):  # type: ignore[misc]
        def rearrange_grad_samples(self, **given: Any) -> tuple[list[Tensor], Tensor]:
            activations, backprops = super().rearrange_grad_samples(**given)
            return [tensor.contiguous() for tensor in activations], backprops.contiguous()

    return Hooks


@contextmanager
def per_image(model: nn.Module) -> Iterator[PerImage]:
    """Hold Opacus's hooks on the layers of a model that learn; it is in training mode.

    Raises:
        ConfigError: If Opacus has no gradients of single images for one of them, with its name.
    """
    hooks = _hooks()
    changed = sum(map(unquicken, model.modules()))  # Opacus goes by a layer's very class
    in_place: list[Any] = [module for module in model.modules() if getattr(module, "inplace", False)]
    for module in in_place:  # what a hook has seen may not be written over
        module.inplace = False
    if errors := hooks.validate(model):
        raise ConfigError(f"privacy.name=dp-sgd: {errors[0]}".replace("\n", " "))
    held = hooks(model, loss_reduction="sum")
    try:
        with warnings.catch_warnings():
            # Of the first layer: images need no gradient.
            warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
            yield PerImage(model, held)
    finally:
        held.cleanup()
        for module in in_place:
            module.inplace = True
        if changed:
            quicken(model)
        for module in model.modules():
            for name in ("activations", "max_batch_len"):
                if name in vars(module):
                    delattr(module, name)


def check(
    model: SplitModel, x: Tensor, losses: Callable[[Tensor], Tensor] | None = None, *, freeze_batchnorm: bool
) -> None:
    """Refuse a model that learns from images in another way than by a sum of their gradients, as autograd finds them.

    Mode, gradients, weights and buffers are afterwards as they were.

    Args:
        model: The model.
        x: What it is given of a few images, (B, ...).
        losses: The loss of each, (B,); by default cross-entropy.
        freeze_batchnorm: BatchNorm is as it was initialised (``model.bn=freeze``).

    Raises:
        ConfigError: With the names of the modules.
    """
    modes = {module: module.training for module in model.modules()}
    learn = [parameter.requires_grad for parameter in model.parameters()]
    buffers = cloned(dict(model.named_buffers()))
    set_training(model, freeze_batchnorm=freeze_batchnorm)
    try:
        _check_batchnorm(model)
        _check_gradients(model, x.detach().clone().requires_grad_(), losses or _cross_entropy(model))
        _check_buffers(model, buffers)
    finally:
        put(dict(model.named_buffers()), buffers)
        for module, mode in modes.items():
            module.training = mode
        for parameter, learns in zip(model.parameters(), learn, strict=True):
            parameter.requires_grad_(learns)
        model.zero_grad()


def _check_batchnorm(model: nn.Module) -> None:
    mixing = [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        and (module.training or any(parameter.requires_grad for parameter in module.parameters()))
    ]
    if mixing:
        raise ConfigError(
            f"privacy.name=dp-sgd: {some(mixing, MOST_NAMED)} (BatchNorm) mixes the images of a batch, so that no "
            "gradient is of one image alone; allowed are model.bn=freeze, model.bn=group, model.freeze=encoder, or a "
            "network without it (model.name=cnn)"
        )


def _check_buffers(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Refuse buffers that a forward pass has changed: they would leave without noise."""
    changed = [name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])]
    if changed:
        raise ConfigError(
            f"privacy.name=dp-sgd: {some(changed, MOST_NAMED)} of this network changes in training without noise; "
            "allowed is a network without running statistics"
        )


def _cross_entropy(model: SplitModel) -> Callable[[Tensor], Tensor]:
    def losses(x: Tensor) -> Tensor:
        logits = model(x)[1].float()
        y = torch.arange(len(x), device=x.device) % model.num_classes
        # Of a decoder: the class of each pixel.
        of_pixels = y.view(-1, *[1] * (logits.ndim - 2)).expand(len(x), *logits.shape[2:])
        return nn.functional.cross_entropy(logits, of_pixels, reduction="none").reshape(len(x), -1).mean(1)

    return losses


def _check_gradients(model: SplitModel, x: Tensor, losses_of: Callable[[Tensor], Tensor]) -> None:
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with per_image(model) as images:
        try:
            losses = losses_of(x)
            images.norms(losses)
        except (RuntimeError, ValueError) as error:  # a layer that is used twice, or maps that are added in place
            raise ConfigError(f"privacy.name=dp-sgd: Opacus: {error}; allowed is another network") from None
        found = {name: getattr(parameter, "_norm_sample", None) for name, parameter in learning.items()}
        images.off()
        (mixed,) = torch.autograd.grad(losses[0], x, retain_graph=True, allow_unused=True)
        gradients = [
            torch.autograd.grad(loss, list(learning.values()), retain_graph=True, allow_unused=True) for loss in losses
        ]
    if mixed is not None and bool(mixed[1:].any()):
        raise ConfigError("privacy.name=dp-sgd: the network mixes the images of a batch; allowed is one that does not")
    wrong = [
        name
        for (name, norms), alone in zip(found.items(), zip(*gradients, strict=True), strict=True)
        if not _agree(norms, alone)
    ]
    if wrong:
        raise ConfigError(
            f"privacy.name=dp-sgd: Opacus finds no right gradients of single images for {some(wrong, MOST_NAMED)} of "
            "this network; allowed is another network, or one that is frozen there (model.freeze)"
        )


def _agree(norms: Tensor | None, gradients: tuple[Tensor | None, ...]) -> bool:
    """Tell whether norms (B,) are those of a parameter's gradients by autograd, one of each image."""
    wanted = torch.tensor([0.0 if gradient is None else float(gradient.norm()) for gradient in gradients])
    given = torch.zeros_like(wanted) if norms is None else norms.detach().cpu().float()
    return bool(((given - wanted).abs() <= _CLOSE * wanted.clamp(min=_SMALL)).all())


def summed(terms: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of loss terms."""
    return torch.stack(list(terms.values())).sum(dim=0)
