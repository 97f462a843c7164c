"""Task templates of the code host that change something, or ask for what cannot be done."""

from __future__ import annotations

from stepwell.envs.web.sites.templates.code import (
    FIND,
    ISSUE,
    ISSUES,
    MERGE,
    MERGES,
    OPEN_ISSUE,
    OPEN_MERGE,
    REPO,
)
from stepwell.envs.web.sites.templates.steps import (
    choose,
    click,
    fill,
    give_up,
    search,
)
from stepwell.envs.web.sites.templates.template import TaskTemplate

MY_REPO = REPO + " WHERE owner = :me"
OTHERS_REPO = REPO + " WHERE owner <> :me"
MY_ISSUE = ISSUE + " WHERE r.owner = :me"
MY_MERGE = MERGE + " WHERE r.owner = :me AND i.state = 'open'"
NOTE = "INSERT INTO notes (kind, target, author, text, day) VALUES ('{}', :id, :me, :text, :today)"

CODE_CHANGES = (
    TaskTemplate(
        "code.create_issue",
        'Open an issue in the project {repo} with the title "{name}", the text "{text}" and the'
        " label {label}.",
        "new issue in {repo} title {name} text {text} label {label}",
        (
            ISSUES,
            click("New issue"),
            fill(title="{name}", text="{text}"),
            choose("label", "{label}"),
            click("Create"),
        ),
        sample=REPO,
        pools={"name": "subjects", "text": "phrases", "label": "labels"},
        effect=(
            "INSERT INTO issues (repo, number, title, text, author, state, label, assignee, milestone, day)"
            " SELECT :id, max(number) + 1, :name, :text, :me, 'open', :label, '', '', :today FROM issues"
            " WHERE repo = :id",
        ),
    ),
    TaskTemplate(
        "code.close_issue",
        'Close the issue "{title}" of my project {repo}.',
        "close issue {title} of {repo}",
        (OPEN_ISSUE, click("Close")),
        sample=MY_ISSUE + " AND state = 'open'",
        effect=("UPDATE issues SET state = 'closed' WHERE id = :id",),
    ),
    TaskTemplate(
        "code.reopen_issue",
        'Open the closed issue "{title}" of my project {repo} again.',
        "open again issue {title} of {repo}",
        (OPEN_ISSUE, click("Open")),
        sample=MY_ISSUE + " AND state = 'closed'",
        effect=("UPDATE issues SET state = 'open' WHERE id = :id",),
    ),
    TaskTemplate(
        "code.assign_issue",
        'Assign the issue "{title}" of my project {repo} to {user}.',
        "put {user} on issue {title} of {repo}",
        (OPEN_ISSUE, click("Edit"), choose("assignee", "{user}"), click("Save")),
        sample="SELECT x.*, p.name AS user FROM (" + MY_ISSUE + ") x, people p WHERE NOT is_staff",
        effect=("UPDATE issues SET assignee = :user WHERE id = :id",),
    ),
    TaskTemplate(
        "code.label_issue",
        'Give the issue "{title}" of my project {repo} the label {label}.',
        "put label {label} on issue {title} of {repo}",
        (OPEN_ISSUE, click("Edit"), choose("label", "{label}"), click("Save")),
        sample=MY_ISSUE,
        pools={"label": "labels"},
        effect=("UPDATE issues SET label = :label WHERE id = :id",),
    ),
    TaskTemplate(
        "code.plan_issue",
        'Plan the issue "{title}" of my project {repo} for the milestone {milestone}.',
        "put milestone {milestone} on issue {title} of {repo}",
        (OPEN_ISSUE, click("Edit"), choose("milestone", "{milestone}"), click("Save")),
        sample=MY_ISSUE,
        pools={"milestone": "milestones"},
        effect=("UPDATE issues SET milestone = :milestone WHERE id = :id",),
        held_out=True,
    ),
    TaskTemplate(
        "code.comment_issue",
        'Comment "{text}" on the issue "{title}" of the project {repo}.',
        "text {text} to issue {title} of {repo}",
        (OPEN_ISSUE, fill(text="{text}"), click("Comment")),
        sample=ISSUE,
        pools={"text": "phrases"},
        effect=(NOTE.format("issue"),),
    ),
    TaskTemplate(
        "code.create_merge",
        'Ask the project {repo} to merge the branch {branch}, with the title "{name}".',
        "new merge in {repo} title {name} branch {branch}",
        (MERGES, click("New merge"), fill(title="{name}"), choose("branch", "{branch}"), click("Create")),
        sample="SELECT id, owner || '/' || r.name AS repo, b.name AS branch FROM repos r JOIN branches b"
        " ON b.repo = id WHERE b.name <> 'main'",
        pools={"name": "subjects"},
        effect=(
            "INSERT INTO merges (repo, number, title, author, branch, state, reviewer, day)"
            " SELECT :id, max(number) + 1, :name, :me, :branch, 'open', '', :today FROM merges"
            " WHERE repo = :id",
        ),
    ),
    TaskTemplate(
        "code.merge",
        'Merge the merge request "{title}" of my project {repo}.',
        "merge {title} of {repo}",
        (OPEN_MERGE, click("Merge")),
        sample=MY_MERGE,
        effect=("UPDATE merges SET state = 'merged' WHERE id = :id",),
    ),
    TaskTemplate(
        "code.close_merge",
        'Close the merge request "{title}" of my project {repo} without merging it.',
        "close merge {title} of {repo}",
        (OPEN_MERGE, click("Close")),
        sample=MY_MERGE,
        effect=("UPDATE merges SET state = 'closed' WHERE id = :id",),
        held_out=True,
    ),
    TaskTemplate(
        "code.comment_merge",
        'Comment "{text}" on the merge request "{title}" of the project {repo}.',
        "text {text} to merge {title} of {repo}",
        (OPEN_MERGE, fill(text="{text}"), click("Comment")),
        sample=MERGE,
        pools={"text": "phrases"},
        effect=(NOTE.format("merge"),),
    ),
    TaskTemplate(
        "code.star",
        "Star the project {repo}.",
        "star {repo}",
        (FIND, click("Star")),
        sample=REPO + " WHERE id NOT IN (SELECT repo FROM repo_stars WHERE user = :me)",
        effect=(
            "INSERT INTO repo_stars VALUES (:me, :id)",
            "UPDATE repos SET stars = stars + 1 WHERE id = :id",
        ),
    ),
    TaskTemplate(
        "code.fork",
        "Fork the project {repo}.",
        "fork {repo}",
        (FIND, click("Fork")),
        sample=OTHERS_REPO + " AND name NOT IN (SELECT name FROM repos WHERE owner = :me)",
        effect=(
            "INSERT INTO repos (owner, name, about, language, license, stars, visibility, parent)"
            " SELECT :me, name, about, language, license, 0, visibility, id FROM repos WHERE id = :id",
            "INSERT INTO branches SELECT r.id, b.name FROM branches b, repos r WHERE b.repo = :id"
            " AND parent = :id",
            "INSERT INTO files SELECT r.id, path, text FROM files f, repos r WHERE f.repo = :id"
            " AND parent = :id",
            "INSERT INTO members SELECT id, :me, 'owner' FROM repos WHERE parent = :id",
        ),
    ),
    TaskTemplate(
        "code.create_repo",
        'Create a {visibility} project named {name} that says about itself "{text}".',
        "new {visibility} project {name} text {text}",
        (
            click("New project"),
            fill(name="{name}", about="{text}"),
            choose("visibility", "{visibility}"),
            click("Create"),
        ),
        pools={
            "name": ("step", "score", "button", "target"),
            "text": "phrases",
            "visibility": ("public", "private"),
        },
        effect=(
            "INSERT INTO repos (owner, name, about, language, license, stars, visibility)"
            " VALUES (:me, :name, :text, '', '', 0, :visibility)",
            "INSERT INTO members SELECT max(id), :me, 'owner' FROM repos",
            "INSERT INTO branches SELECT max(id), 'main' FROM repos",
        ),
    ),
    TaskTemplate(
        "code.create_branch",
        "Start a branch named {branch} in my project {repo}.",
        "new branch {branch} in {repo}",
        (FIND, click("Branches"), fill(name="{branch}"), click("Create")),
        sample=MY_REPO,
        pools={"branch": ("up", "down", "left", "right")},
        effect=("INSERT INTO branches VALUES (:id, :branch)",),
    ),
    TaskTemplate(
        "code.invite",
        "Make {user} a {role} of my project {repo}.",
        "put {user} in {repo} role {role}",
        (FIND, click("Members"), fill(name="{user}"), choose("role", "{role}"), click("Invite")),
        sample="SELECT r.id, owner || '/' || r.name AS repo, p.name AS user FROM repos r, people p"
        " WHERE owner = :me AND p.name <> :me AND NOT is_staff",
        pools={"role": ("reader", "writer")},
        effect=("INSERT OR REPLACE INTO members VALUES (:id, :user, :role)",),
    ),
    TaskTemplate(
        "code.remove_member",
        "Remove {user} from my project {repo}.",
        "take {user} out of {repo}",
        (FIND, click("Members"), click("Remove {user}")),
        sample="SELECT r.id, owner || '/' || r.name AS repo, user FROM repos r JOIN members m ON repo = r.id"
        " WHERE owner = :me AND user <> :me",
        effect=("DELETE FROM members WHERE repo = :id AND user = :user",),
    ),
    TaskTemplate(
        "code.change_about",
        'Let my project {repo} say about itself "{text}".',
        "put text {text} in settings of {repo}",
        (FIND, click("Settings"), fill(about="{text}"), click("Save")),
        sample=MY_REPO,
        pools={"text": "phrases"},
        effect=("UPDATE repos SET about = :text WHERE id = :id",),
    ),
    TaskTemplate(
        "code.make_private",
        "Make my project {repo} private.",
        "put private in settings of {repo}",
        (FIND, click("Settings"), choose("visibility", "private"), click("Save")),
        sample=MY_REPO,
        effect=("UPDATE repos SET visibility = 'private' WHERE id = :id",),
    ),
    TaskTemplate(
        "code.edit_file",
        'Replace the text of the file {path} in my project {repo} by "{text}".',
        "put text {text} in {path} of {repo}",
        (FIND, click("{path}"), fill(text="{text}"), click("Save")),
        sample="SELECT id, owner || '/' || name AS repo, path FROM repos JOIN files ON files.repo = id"
        " WHERE owner = :me",
        pools={"text": "phrases"},
        effect=(
            "UPDATE files SET text = :text WHERE repo = :id AND path = :path",
            "INSERT INTO commits (repo, author, message, day) VALUES (:id, :me, 'Change ' || :path, :today)",
        ),
    ),
    TaskTemplate(
        "code.merge_elsewhere",
        'Merge the merge request "{title}" of the project {repo}. Answer N/A if you may not.',
        "merge {title} of {repo}",
        (OPEN_MERGE, give_up("State: ")),
        sample=MERGE + " WHERE r.owner <> :me AND i.state = 'open'",
    ),
    TaskTemplate(
        "code.missing_repo",
        "How many stars does the project {repo} have? Answer N/A if there is no such project.",
        "stars of {repo} ?",
        (search("{repo}"), give_up("(?m)^0 projects")),
        sample="SELECT name || '/zoo' AS repo FROM people",
    ),
    TaskTemplate(
        "code.settings_elsewhere",
        "Make the project {repo} private. Answer N/A if you may not.",
        "put private in settings of {repo}",
        (FIND, click("Settings"), give_up("You may not")),
        sample=OTHERS_REPO,
        held_out=True,
    ),
)
