"""Which rounds a run and its nodes keep, so that a run can go on after any of them."""

KEEP_STEPS = (1, 2, 4, 8)  # rounds back


def kept_rounds(server_round: int) -> list[int]:
    """Return the rounds that have a checkpoint after this one was written, last first: five, the older the thinner.

    The last and the one before it; and of the multiples of 2, 4 and 8 the last that is at least as many rounds back:
    17, 16, 14, 12, 8. Each of them was kept from the moment it was written.
    """
    older = (step * (server_round // step - 1) for step in KEEP_STEPS)
    return [server_round, *(number for number in older if number > 0)]
