"""Settings of methods in experiments."""

from fedshift.lab.tables.results.settings import own_settings, usual_settings


def test_a_method_that_an_experiment_alone_refuses_has_no_usual_settings() -> None:
    """GGEUR needs a frozen encoder, which the embedded digits' experiment does not have: its runs were given one."""
    assert usual_settings("handwritten", "handwritten", "ggeur") == {}
    assert own_settings("handwritten", "handwritten", "ggeur") == {}
    assert usual_settings("handwritten", "handwritten", "fpl")["method.name"] == "fpl"
