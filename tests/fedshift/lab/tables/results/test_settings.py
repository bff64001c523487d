"""Settings of methods in experiments."""

from fedshift.lab.tables.results.settings import own_settings, usual_settings


def test_settings_are_known_of_a_method_that_the_experiment_alone_refuses() -> None:
    """GGEUR needs a frozen encoder, which the embedded digits' experiment does not have: its runs were given one."""
    assert usual_settings("handwritten", "handwritten", "ggeur")["method.name"] == "ggeur"
    assert own_settings("handwritten", "handwritten", "ggeur") == {}
    assert usual_settings("digits", "pacs", "fpl") == own_settings("digits", "pacs", "fpl") == {}
