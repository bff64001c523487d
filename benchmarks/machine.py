"""On what a figure was measured: as ``fedshift costs`` says it."""

from fedshift_clients.training.machine import AMX, AVX512, NONE, bfloat16, describe

__all__ = ["AMX", "AVX512", "NONE", "bfloat16", "describe"]
