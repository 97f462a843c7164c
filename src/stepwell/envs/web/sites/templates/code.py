"""Task templates of the code host that ask for an answer or a page."""

from __future__ import annotations

from stepwell.envs.web.sites.templates.steps import (
    answer,
    chain,
    choose,
    click,
    filter_by,
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
ISSUE = (
    "SELECT i.id AS id, i.title AS title, i.number AS number, i.state AS state, r.id AS repo_id,"
    " r.owner || '/' || r.name AS repo FROM issues i JOIN repos r ON r.id = i.repo"
)
MERGE = ISSUE.replace("issues", "merges")

CODE_QUESTIONS = (
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
        (filter_by("language", "{language}"), read(r"(\d+) project"), answer()),
        sample="SELECT DISTINCT language FROM repos",
        answer="SELECT count(*) FROM repos WHERE language = :language",
        held_out=True,
    ),
    TaskTemplate(
        "code.open_issues",
        "How many {state} issues does the project {repo} have?",
        "number of {state} issues of {repo} ?",
        (ISSUES, filter_by("state", "{state}"), read(r"(\d+) issue"), answer()),
        sample=REPO,
        pools={"state": ("open", "closed")},
        answer="SELECT count(*) FROM issues WHERE repo = :id AND state = :state",
    ),
    TaskTemplate(
        "code.label_count",
        "How many issues of the project {repo} have the label {label}?",
        "number of {label} issues of {repo} ?",
        (ISSUES, filter_by("label", "{label}"), read(r"(\d+) issue"), answer()),
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
        (click("My issues"), read(r"(\d+) issue"), answer()),
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
)
