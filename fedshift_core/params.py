"""Base classes of sections and of the parameters of methods, modules and adaptations, and ranges of common numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, ValidatorFunctionWrapHandler, field_validator
from typing_extensions import TypeVar

from fedshift_core.limits import LARGEST_SEED, MOST_BATCH, MOST_ROUNDS, MOST_WAIT, as_found, is_number

#: Rounds of a part of a run, local epochs of a round.
Rounds = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
#: Rounds of a whole run; 0 trains nothing and scores the initial weights.
RunRounds = Annotated[int, Field(ge=0, le=MOST_ROUNDS)]
#: Images of a training step: BatchNorm needs two.
BatchSize = Annotated[int, Field(ge=2, le=MOST_BATCH)]
#: Lets a field take the word off, which YAML 1.1 reads as false.
OFF_IS_A_WORD = BeforeValidator(lambda value: "off" if value is False else value)
Probability = Annotated[float, Field(ge=0, le=1)]
#: From 0 up to, but not with 1.
Fraction = Annotated[float, Field(ge=0, lt=1)]
#: Above 0 up to 1.
Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
#: A waiting time.
Seconds = Annotated[float, Field(gt=0, le=MOST_WAIT)]
#: Number format of products, and memory order of feature maps: (B, H, W, C) or (B, C, H, W).
Arithmetic = Literal["float32/channels_last", "float32/nchw", "bf16/channels_last", "bf16/nchw"]
#: All of them; a node sends the server the index of its own.
ARITHMETICS: tuple[Arithmetic, ...] = get_args(Arithmetic)


class ConfigModel(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True):
    """Base of what a user writes: true and false, also as yes and no, are not taken for the numbers 1 and 0.

    The text below a field describes it: `fedshift keys` and docs/reference show it.
    """

    @classmethod
    def __pydantic_init_subclass__(cls, **named: Any) -> None:
        """Make one line of each description."""
        super().__pydantic_init_subclass__(**named)
        for field in cls.model_fields.values():
            field.description = field.description and " ".join(field.description.split())

    @field_validator("*", mode="wrap")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        checked = check(value)
        if _has_boolean_for_a_number(value, checked):
            raise ValueError(f"expected a number, found {as_found(value)}")
        return checked


def _has_boolean_for_a_number(given: Any, checked: Any) -> bool:
    """Tell whether a checked value has a number where true or false was given."""
    if isinstance(given, bool):
        return is_number(checked)
    if isinstance(given, dict) and isinstance(checked, dict):
        return any(_has_boolean_for_a_number(given[key], checked[key]) for key in given.keys() & checked.keys())
    if isinstance(given, list | tuple) and isinstance(checked, list | tuple):
        return any(map(_has_boolean_for_a_number, given, checked))
    return False


class SectionOfRooms(ConfigModel, defer_build=True):
    """Base of sections of a configuration whose further keys features declare (``fedshift_core.features``)."""

    if TYPE_CHECKING:

        def __getattr__(self, key: str) -> Any: ...


class For:
    """Says of a field for which values of another field of its section it does something.

    As in ``trim: Annotated[float, For("robust", "trimmed_mean")]``.
    """

    def __init__(self, key: str, *values: str | bool) -> None:
        self.key, self.values = key, values


@dataclass(frozen=True)
class Former:
    """Says of a field which value was in force in runs from before it existed, and in which of them it mattered.

    As in ``order: Annotated[str, Former("listed", lambda section: "own" in section.get("bn", ()))]``.
    """

    value: Any
    mattered: Callable[[Mapping[str, Any]], bool]


class Params(ConfigModel):
    """Base of the parameters of a method, modules, an adaptation or a feature; empty for FedAvg."""

    @classmethod
    def __pydantic_init_subclass__(cls, **named: Any) -> None:
        """Refuse a parameter that a configuration could not tell from the name of what has the parameters."""
        super().__pydantic_init_subclass__(**named)
        if "name" in cls.model_fields:
            raise TypeError(
                f"{cls.__name__}: a parameter cannot be called 'name', which says whose parameters they are"
            )


class NoiseParams(Params):
    """Base of the parameters of a method whose noise or masks protect what a node sends.

    They come from the system's entropy, which the server cannot repeat, so such a run is not repeatable.
    """

    repeatable_noise: bool = False
    """Whether noise and masks are drawn from the run's seed, which repeats a run bit for bit and lets the server remove
    them; simulation only.
    """


P = TypeVar("P", bound=Params, default=Any)


class Parametrised(Generic[P]):
    """Base of what has parameters of its own: a strategy, a client, modules, an adaptation.

    The class of the parameters is its type argument, as in ``class FPLClient(PrototypeClient[FPLParams])``; a class may
    set ``params_model`` itself instead.

    Attributes:
        params_model: The class of the parameters.
        params: The parameters.
    """

    params_model: ClassVar[type[Params]] = Params
    params: P

    def __init_subclass__(cls, **named: Any) -> None:
        """Take the class of the parameters from the type argument; of a type variable, the bound."""
        super().__init_subclass__(**named)
        if "params_model" in vars(cls):
            return
        for base in vars(cls).get("__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Parametrised):
                argument = get_args(base)[0]
                model = getattr(argument, "__bound__", argument)
                if isinstance(model, type) and issubclass(model, Params):
                    cls.params_model = model
