"""What every group of settings has in common.

Settings are frozen and refuse unknown keys, so that a misspelt name is an error at the
start and never a silent default. Numbers are finite: no setting has a meaning at infinity, and
a `nan` would pass every comparison. Nothing here imports torch:
`--help` stays instant.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator

from stepwell.config.renamed import rename_keys
from stepwell.core.user_objects import name_object

ObjectName = Annotated[str, BeforeValidator(name_object)]
"""The name of a user's object (`module:name`). Python code may give the object itself: it is then named."""
OptionalObjectName = Annotated[str | None, BeforeValidator(name_object)]


def check_url(url: str | None) -> str | None:
    """Refuse what is no address of HTTP; `ValueError` says how one is written."""
    try:
        parts = urlsplit(url or "http://none")
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, or brackets that do not match
        is_good = False
    if not is_good:
        raise ValueError(f"url must be an address such as http://127.0.0.1:8000/v1, got {url!r}")
    return url


Url = Annotated[str | None, AfterValidator(check_url)]


class Settings(BaseModel):
    """A group of settings: immutable, typed, and closed to unknown names."""

    table_name: ClassVar[str] = ""
    """Its dotted name in a run's settings, where it has keys with old names."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, values: Any) -> Any:
        """What earlier versions stored has old names of keys."""
        return rename_keys(cls.table_name, values) if cls.table_name and isinstance(values, dict) else values
