"""The phases of a round on the server, one after another."""

MESSAGES = "messages"  # choosing nodes and writing to them
TRAINING = "training"  # from the first message until all answers are there
AVERAGING = "averaging"  # checking, averaging, merging knowledge
EVALUATION = "evaluation"
