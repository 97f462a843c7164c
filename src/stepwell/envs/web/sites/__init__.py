"""A web of our own: a shop, its admin, a forum, a code host and a map, with tasks, checkers and oracles.

    SiteHost ─ app (five hosts) ─ pages ─ one SQLite snapshot per episode
    make_site_task ─► content ─► plan_task (oracle) ─► check_task (page, address, database)

| module | holds |
|---|---|
| `seeding/` | tables and what a seed puts into them |
| `pages/` | the pages of each site: plain functions from a visit to blocks of HTML |
| `markup.py`, `listing.py`, `layout.py`, `style.py` | what all pages share |
| `app.py`, `replies.py` | requests and answers |
| `host.py`, `episode.py`, `database.py` | episodes and their snapshots |
| `answer_cache.py` | what was answered before, for all episodes |
| `templates/` | task templates as rows of data, and the steps of their plans |
| `tasks.py`, `source.py` | draw, check and solve tasks; the same for the web environment |
"""

from stepwell.envs.web.sites.episode import SiteEpisode
from stepwell.envs.web.sites.host import SiteHost
from stepwell.envs.web.sites.tasks import check_task, make_site_task, plan_task

__all__ = ["SiteEpisode", "SiteHost", "check_task", "make_site_task", "plan_task"]
