"""Base, types and tools of hooks with which a method's half on the server is written."""

from fedshift_core.arrays import Arrays, Floats, Ints
from fedshift_core.secure.layout import Sum
from fedshift_core.seeding import generator
from fedshift_core.wire.records import encode
from fedshift_strategies.base import DomainStrategy, Scalars
from fedshift_strategies.contributions import Declaration, Own, Shape, Whole
from fedshift_strategies.federation.averaging import shares
from fedshift_strategies.federation.checks import ANY_COUNT, ANY_NUMBER, Range
from fedshift_strategies.federation.context import Ask
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.updates import Update, average, decode

__all__ = [
    "ANY_COUNT",
    "ANY_NUMBER",
    "Arrays",
    "Ask",
    "Declaration",
    "DomainStrategy",
    "Floats",
    "Ints",
    "Node",
    "Own",
    "Range",
    "Scalars",
    "Shape",
    "Sum",
    "Update",
    "Whole",
    "average",
    "decode",
    "encode",
    "generator",
    "shares",
]
