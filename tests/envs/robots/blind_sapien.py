"""ManiSkill without a graphics device: what is only seen is left out, what moves is simulated as ever.

SAPIEN makes no material without such a device, and ManiSkill builds no actor without a material. So
`leave_out_visuals` puts an empty material in its place and adds no visual shapes. Physics, controllers,
observations of states, rewards and success are the package's own.
"""

from __future__ import annotations

from typing import Any


class NoMaterial:
    """Takes whatever it is given."""

    def __init__(self, *args: Any, **settings: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **settings: None


def leave_out_visuals() -> None:
    """Where there is no graphics device; elsewhere nothing changes."""
    import mani_skill.envs.sapien_env as environments
    import sapien
    import sapien.render
    import sapien.wrapper.urdf_loader as urdf
    from mani_skill.utils.building.actor_builder import ActorBuilder
    from sapien.wrapper.articulation_builder import LinkBuilder

    try:
        sapien.render.RenderMaterial()
        return
    except RuntimeError:
        sapien.render.RenderMaterial = urdf.RenderMaterial = NoMaterial
    for builder in (ActorBuilder, LinkBuilder, sapien.ActorBuilder):
        for name in dir(builder):
            if name.startswith("add_") and "visual" in name:
                setattr(builder, name, lambda self, *args, **settings: self)
    made = environments.BaseEnv.__init__

    def blind(self: Any, *args: Any, **settings: Any) -> None:
        made(self, *args, **(settings | {"render_backend": "none"}))

    environments.BaseEnv.__init__ = blind
