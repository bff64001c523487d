"""FedMLP (an approximation) on the server: plain means, and classes that come and go."""

from support import after_rounds, new_strategy, update

from strategies.fedmlp import FedMLPStrategy


def test_a_prototype_is_the_plain_mean_over_the_nodes_that_hold_the_class() -> None:
    one, two = update([[1, 2], [3, 4], [9, 9]], [1, 5, 0], 0), update([[3, 4], [9, 9], [9, 9]], [100, 0, 0], 1)
    assert after_rounds(new_strategy(FedMLPStrategy), [one, two]) == {0: [2, 3], 1: [3, 4]}


def test_a_class_that_nobody_holds_keeps_its_own() -> None:
    server = new_strategy(FedMLPStrategy)
    later = update([[9, 9], [7, 8], [5, 6]], [0, 1, 1])
    assert after_rounds(server, [update([[1, 2], [3, 4], [9, 9]], [1, 1, 0])], [later]) == {
        0: [1, 2], 1: [7, 8], 2: [5, 6],
    }  # fmt: skip
