"""Decides which rounds a run and its nodes keep, so that a run can continue after any of them."""

FOLDER = "checkpoint"  # of a run folder
KEEP_STEPS = (1, 2, 4, 8)  # rounds back


def kept_rounds(server_round: int) -> list[int]:
    """Return the rounds that have a checkpoint after this round, last first: five, sparser towards the start.

    They are the last round, the one before, and the last multiples of 2, 4 and 8 that are at least so many rounds back:
    17, 16, 14, 12, 8. Each of them is kept from the moment it is written.
    """
    older = (step * (server_round // step - 1) for step in KEEP_STEPS)
    return [server_round, *(number for number in older if number > 0)]
