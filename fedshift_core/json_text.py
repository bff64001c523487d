"""Writes values as JSON that is TOML and YAML, too."""

import json
import re
from typing import Any

#: What one of the three takes for no text, or for a line's end, where it stands as it is.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")


def text_of(value: object, **form: Any) -> str:
    """Return a value as JSON, which TOML and YAML read alike, but for null and mappings in TOML.

    ``form``: options of ``json.dumps``.

    Characters stay as they are where they may: JSON's escapes of an emoji are two halves, which TOML refuses and YAML
    does not join.
    """
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False, **form))
