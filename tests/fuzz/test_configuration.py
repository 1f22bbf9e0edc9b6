"""What once was found in the reading of the configuration."""

import pytest

from sidecar.errors import ConfigError
from tests.fuzz.own_files import check_configured

NOT_YAML = {
    "a date that is none": "workers: 2001-99-99",
    "a tag without its value": "!!timestamp x",
    "no boolean": "!!bool x",
    "no number": "!!int x",
    "an empty number": '!!int ""',
    "nested without end": "[" * 2000,
    "a port of 4301 digits": 'edge: {listen: "a:' + "1" * 4301 + '"}',
}


@pytest.mark.parametrize("text", NOT_YAML.values(), ids=NOT_YAML.keys())
def test_a_file_that_is_no_configuration(text: str) -> None:
    """It is a ConfigError."""
    with pytest.raises(ConfigError):
        check_configured(text, {})


def test_a_variable_that_is_not_utf8() -> None:
    """As `os.environ` has it; it is a ConfigError."""
    with pytest.raises(ConfigError):
        check_configured("", {"PD_SIDECAR__INSTANCES": "[{role: \udcff}]"})
