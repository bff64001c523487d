"""Holds a method of one's own to what every method of FedShift is held to: :func:`check_method`."""

from fedshift.api.testing import ContractError as ContractError
from fedshift.api.testing import check_beats_chance as check_beats_chance
from fedshift.api.testing import check_declared as check_declared
from fedshift.api.testing import check_finite as check_finite
from fedshift.api.testing import check_method as check_method
from fedshift.api.testing import check_repeats as check_repeats
