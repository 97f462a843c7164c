"""Which environments and options a caller of a service may choose, and which belong to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.envs.options import list_host_options
from stepwell.envs.registry import find_env_type, read_options
from stepwell.services.errors import ErrorKind, ServiceError


def read_caller_options(
    name: Any, options: Any, names: Sequence[str], host_options: Mapping[str, Mapping[str, Any]], service: str
) -> Any:
    """The options of an environment: the caller's and the host's. `service` names the command in messages.

    Refuses environments that are not hosted, and options that name resources of the host or that it has set.
    """
    if not isinstance(name, str) or name not in names:
        raise ServiceError(
            ErrorKind.NOT_FOUND,
            f"env {str(name)[:64]!r} is not hosted here; available: {', '.join(names)}",
            param="env",
        )
    if not isinstance(options, dict):
        raise ServiceError(ErrorKind.INVALID, "options must be an object", param="options")
    host = host_options.get(name, {})
    kind = find_env_type(name).Options
    settings = read_options(name, {**options, **host})
    for option in sorted(set(options) & (set(list_host_options(kind)) | set(host))):
        ours = settings.model_dump(mode="json")[option] if option in host else _get_default(kind, option)
        if options[option] != ours:
            raise ServiceError(
                ErrorKind.FORBIDDEN,
                f"env.options.{option} of {name} belongs to the host, so callers cannot set it; the "
                f"host sets it with `stepwell serve {service} --set {name}.{option}=VALUE`",
                param=option,
            )
    return settings


def _get_default(kind: Any, option: str) -> Any:
    field = kind.model_fields.get(option)
    return None if field is None else field.get_default(call_default_factory=True)
