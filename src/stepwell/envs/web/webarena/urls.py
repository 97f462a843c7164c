"""Judges the page where the agent stopped: `url_match`.

    reference   http://shop/search?q=tea |OR| http://shop/find?q=tea
    page        http://shop/search/result?q=tea&page=2          matches by "GOLD in PRED"

"GOLD in PRED" (WebArena): host and path of one of the references lie inside those of the page, and for every
query name of any reference the page has one of the values that the references give it. "EXACT" and the
"GOLD in PRED" of WebArena-Lite compare whole URLs: equal, or one contained in the other.

A closing slash never counts. The fragment of a URL never counts in WebArena's own rule.
"""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from stepwell.envs.web.webarena.task import OR, Rules


def judge_url(reference: str, url: str, *, rule: str = "GOLD in PRED", rules: Rules = "webarena") -> bool:
    """Whether the agent stopped at one of the references, which stand with ` |OR| ` between them."""
    if rules == "webarena" and rule == "GOLD in PRED":
        return _judge_parts([one.rstrip("/") for one in reference.split(OR)], url.rstrip("/"))
    wanted = [_clean_url(one) for one in reference.split(OR)]
    found = _clean_url(url)
    return found in wanted if rule == "EXACT" else any(one in found for one in wanted)


def _judge_parts(references: list[str], url: str) -> bool:
    place, query = _split_url(url)
    parts = [_split_url(one) for one in references]
    values: dict[str, set[str]] = {}
    for _, wanted in parts:
        for name, options in wanted.items():
            values.setdefault(name, set()).update(options)
    is_place = place != "" and any(base in place for base, _ in parts)
    return is_place and all(options & set(query.get(name, ())) for name, options in values.items())


def _split_url(url: str) -> tuple[str, dict[str, list[str]]]:
    try:
        parts = urlsplit(url)
    except ValueError:  # such as a bracket in the host
        return "", {}
    path = parts.path.partition(";")[0] if ";" in parts.path.rpartition("/")[2] else parts.path
    return parts.netloc + path, parse_qs(parts.query)


def _clean_url(url: str) -> str:
    return url.replace("localhost", "127.0.0.1").removesuffix("/")
