"""Task templates of the code host."""

from __future__ import annotations

from stepwell.envs.web.sites.templates.steps import (
    answer,
    chain,
    choose,
    click,
    fill,
    filter_by,
    give_up,
    open_first,
    open_link,
    read,
    read_all,
    search,
    sort_by,
)
from stepwell.envs.web.sites.templates.template import TaskTemplate

FIND = chain(search("{repo}"), open_link("{repo}"))
ISSUES, MERGES = chain(FIND, click("Issues")), chain(FIND, click("Merges"))
OPEN_ISSUE, OPEN_MERGE = chain(ISSUES, open_link("{title}")), chain(MERGES, open_link("{title}"))
REPO = "SELECT id, owner || '/' || name AS repo FROM repos"
MY_REPO = REPO + " WHERE owner = :me"
OTHERS_REPO = REPO + " WHERE owner <> :me"
ISSUE = (
    "SELECT i.id AS id, i.title AS title, i.number AS number, i.state AS state, r.id AS repo_id,"
    " r.owner || '/' || r.name AS repo FROM issues i JOIN repos r ON r.id = i.repo"
)
MY_ISSUE = ISSUE + " WHERE r.owner = :me"
MERGE = ISSUE.replace("issues", "merges")
MY_MERGE = MERGE + " WHERE r.owner = :me AND i.state = 'open'"
NOTE = "INSERT INTO notes (kind, target, author, text, day) VALUES ('{}', :id, :me, :text, :today)"

CODE_TEMPLATES = (
    TaskTemplate(
        "code.language",
        "In which language is the project {repo} written?",
        "language of {repo} ?",
        (FIND, read(r"Language: (\S+)"), answer()),
        sample=REPO,
        answer="SELECT language FROM repos WHERE id = :id",
    ),
    TaskTemplate(
        "code.license",
        "Under which license is the project {repo}?",
        "license of {repo} ?",
        (FIND, read(r"License: (\S+)"), answer()),
        sample=REPO,
        answer="SELECT license FROM repos WHERE id = :id",
    ),
    TaskTemplate(
        "code.stars",
        "How many stars does the project {repo} have?",
        "stars of {repo} ?",
        (FIND, read(r"Stars: (\d+)"), answer()),
        sample=REPO,
        answer="SELECT stars FROM repos WHERE id = :id",
    ),
    TaskTemplate(
        "code.most_stars",
        "Which {language} project has the most stars? Answer with owner/name.",
        "{language} project with most stars ?",
        (
            filter_by("language", "{language}"),
            sort_by("most stars"),
            open_first(r"/[^/]+/[^/]+"),
            answer("{first}"),
        ),
        sample="SELECT DISTINCT language FROM repos",
        answer="SELECT owner || '/' || name FROM repos WHERE language = :language ORDER BY stars"
        " DESC, id LIMIT 1",
    ),
    TaskTemplate(
        "code.language_count",
        "How many projects are written in {language}?",
        "number of {language} projects ?",
        (filter_by("language", "{language}"), read(r"(\d+) projects"), answer()),
        sample="SELECT DISTINCT language FROM repos",
        answer="SELECT count(*) FROM repos WHERE language = :language",
        held_out=True,
    ),
    TaskTemplate(
        "code.open_issues",
        "How many {state} issues does the project {repo} have?",
        "number of {state} issues of {repo} ?",
        (ISSUES, filter_by("state", "{state}"), read(r"(\d+) issues"), answer()),
        sample=REPO,
        pools={"state": ("open", "closed")},
        answer="SELECT count(*) FROM issues WHERE repo = :id AND state = :state",
    ),
    TaskTemplate(
        "code.label_count",
        "How many issues of the project {repo} have the label {label}?",
        "number of {label} issues of {repo} ?",
        (ISSUES, filter_by("label", "{label}"), read(r"(\d+) issues"), answer()),
        sample=REPO,
        pools={"label": "labels"},
        answer="SELECT count(*) FROM issues WHERE repo = :id AND label = :label",
    ),
    TaskTemplate(
        "code.issue_author",
        'Who wrote the issue "{title}" of the project {repo}?',
        "user of issue {title} of {repo} ?",
        (OPEN_ISSUE, read(r"Author: (\S+)"), answer()),
        sample=ISSUE,
        answer="SELECT author FROM issues WHERE id = :id",
    ),
    TaskTemplate(
        "code.issue_assignee",
        'To whom is the issue "{title}" of the project {repo} assigned?',
        "assignee of {title} of {repo} ?",
        (OPEN_ISSUE, read(r"Assignee: (\S+)"), answer()),
        sample=ISSUE + " WHERE i.assignee <> ''",
        answer="SELECT assignee FROM issues WHERE id = :id",
    ),
    TaskTemplate(
        "code.issue_milestone",
        'For which milestone is the issue "{title}" of the project {repo} planned?',
        "milestone of {title} of {repo} ?",
        (OPEN_ISSUE, read(r"Milestone: (\S+)"), answer()),
        sample=ISSUE,
        answer="SELECT milestone FROM issues WHERE id = :id",
        held_out=True,
    ),
    TaskTemplate(
        "code.newest_issue",
        "What is the title of the newest {state} issue of the project {repo}?",
        "title of new {state} issue of {repo} ?",
        (ISSUES, filter_by("state", "{state}"), open_first(r"/.+/issues/\d+"), answer("{first}")),
        sample="SELECT DISTINCT r.id, owner || '/' || name AS repo, state FROM repos r JOIN issues"
        " i ON repo = r.id",
        answer="SELECT title FROM issues WHERE repo = :id AND state = :state ORDER BY number DESC LIMIT 1",
    ),
    TaskTemplate(
        "code.my_issue_count",
        "How many open issues are assigned to {me}, that is to me?",
        "number of {me} open issues ?",
        (click("My issues"), read(r"(\d+) issues"), answer()),
        answer="SELECT count(*) FROM issues WHERE assignee = :me AND state = 'open'",
    ),
    TaskTemplate(
        "code.last_committer",
        "Who made the newest commit of the project {repo}?",
        "user of new commit of {repo} ?",
        (FIND, click("Commits"), sort_by("new"), read(r"commits\s+.+ by (\S+) on"), answer()),
        sample=REPO,
        answer="SELECT author FROM commits WHERE repo = :id ORDER BY day DESC, id DESC LIMIT 1",
    ),
    TaskTemplate(
        "code.first_commit",
        "What is the message of the oldest commit of the project {repo}?",
        "text of old commit of {repo} ?",
        (FIND, click("Commits"), sort_by("old"), read(r"commits\s+(.+) by \S+ on"), answer()),
        sample=REPO,
        answer="SELECT message FROM commits WHERE repo = :id ORDER BY day, id LIMIT 1",
    ),
    TaskTemplate(
        "code.commit_count",
        "How many commits in the project {repo} are by {user}?",
        "number of {user} commits of {repo} ?",
        (FIND, click("Commits"), read_all(r"by {user} (on)"), answer("{count}")),
        sample="SELECT r.id, owner || '/' || r.name AS repo, author AS user FROM repos r JOIN"
        " commits c ON repo = r.id",
        answer="SELECT count(*) FROM commits WHERE repo = :id AND author = :user",
        held_out=True,
    ),
    TaskTemplate(
        "code.merge_branch",
        'Which branch does the merge request "{title}" of the project {repo} want to merge?',
        "branch of merge {title} of {repo} ?",
        (OPEN_MERGE, read(r"Branch: (\S+)"), answer()),
        sample=MERGE,
        answer="SELECT branch FROM merges WHERE id = :id",
    ),
    TaskTemplate(
        "code.reviewer",
        'Who reviews the merge request "{title}" of the project {repo}?',
        "reviewer of merge {title} of {repo} ?",
        (OPEN_MERGE, read(r"Reviewer: (\S+)"), answer()),
        sample=MERGE,
        answer="SELECT reviewer FROM merges WHERE id = :id",
    ),
    TaskTemplate(
        "code.members",
        "Who are the members of the project {repo}? Separate the names by commas.",
        "name all members of {repo} ?",
        (FIND, click("Members"), read_all(r"(\S+): (?:owner|writer|reader)"), answer()),
        sample=REPO,
        answer="SELECT user FROM members WHERE repo = :id",
    ),
    TaskTemplate(
        "code.show_repo",
        "Open the project {repo}.",
        "open {repo}",
        (FIND,),
        sample=REPO,
        url="/{repo}",
    ),
    TaskTemplate(
        "code.show_file",
        "Open the file {path} of the project {repo}.",
        "open {path} of {repo}",
        (FIND, click("{path}")),
        sample="SELECT id, owner || '/' || name AS repo, path FROM repos JOIN files ON files.repo = id",
        url="/{repo}/files/{path}",
    ),
    TaskTemplate(
        "code.show_issue",
        'Open the issue "{title}" of the project {repo}.',
        "open issue {title} of {repo}",
        (OPEN_ISSUE,),
        sample=ISSUE,
        url="/{repo}/issues/{number}",
    ),
    TaskTemplate(
        "code.show_issues",
        "List the {state} issues of the project {repo}, oldest first.",
        "open {state} issues of {repo} by old",
        (ISSUES, choose("state", "{state}"), choose("sort", "old"), click("Apply")),
        sample=REPO,
        pools={"state": ("open", "closed")},
        url="/{repo}/issues?state={state}&sort=old",
    ),
    TaskTemplate(
        "code.show_merges",
        "List the {state} merge requests of the project {repo}.",
        "open {state} merges of {repo}",
        (MERGES, filter_by("state", "{state}")),
        sample=REPO,
        pools={"state": ("open", "merged", "closed")},
        url="/{repo}/merges?state={state}",
        held_out=True,
    ),
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
