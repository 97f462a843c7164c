"""Task templates of the five sites, one module per site; two where there are many: questions, changes."""

from stepwell.envs.web.sites.templates.admin import ADMIN_TEMPLATES
from stepwell.envs.web.sites.templates.code import CODE_QUESTIONS
from stepwell.envs.web.sites.templates.code_changes import CODE_CHANGES
from stepwell.envs.web.sites.templates.forum import FORUM_TEMPLATES
from stepwell.envs.web.sites.templates.map import MAP_TEMPLATES
from stepwell.envs.web.sites.templates.shop import SHOP_QUESTIONS
from stepwell.envs.web.sites.templates.shop_changes import SHOP_CHANGES
from stepwell.envs.web.sites.templates.template import TaskTemplate

_ALL = (
    *(*SHOP_QUESTIONS, *SHOP_CHANGES, *ADMIN_TEMPLATES, *FORUM_TEMPLATES),
    *(*CODE_QUESTIONS, *CODE_CHANGES, *MAP_TEMPLATES),
)
TEMPLATES: dict[str, TaskTemplate] = {template.name: template for template in _ALL}
assert len(TEMPLATES) == len(_ALL), "two templates have one name"

__all__ = ["TEMPLATES"]
