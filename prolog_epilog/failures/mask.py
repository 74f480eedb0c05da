"""Takes secrets out of a line before it is stored or shown, and leaves what tells which kind it was.

>>> mask("login with hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345 failed")
'login with hf_**** failed'
>>> mask("postgresql://train:hunter2@db/runs?sslmode=require")
'postgresql://train:****@db/runs?sslmode=require'

What only looks like a secret stays: git commits, checksums, UUIDs, numbers of tokens. The prefixes are those that the
services document (GitHub's secret scanning patterns, the gitleaks and detect-secrets rules name the same).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

__all__ = ["MASK", "mask"]

MASK: Final = "****"

_KEPT: Final = r"\g<kept>" + MASK


@dataclass(frozen=True, slots=True)
class _Rule:
    """`kept` of the pattern stays before the mask, `after` behind it. `hints`: lower-case; one is in each match."""

    hints: tuple[str, ...]
    pattern: str
    into: str = _KEPT


def _rule(hints: str, pattern: str, into: str = _KEPT) -> _Rule:
    return _Rule(tuple(hints.split("|")), pattern, into)


# A name that ends in one of these holds a secret, whatever it looks like...
_SURE: Final = (
    r"pass(?:word|wd|phrase|wort)|pwd|secret(?:[_-]?(?:access[_-]?)?key)?|private[_-]?key|account[_-]?key"
    r"|shared[_-]?access[_-]?(?:key|signature)|client[_-]?secret|encryption[_-]?key|storage[_-]?key|netrc"
)
# ...and one that ends in one of these holds one if it looks so.
_LIKELY: Final = (
    r"token|api[_-]?key|apikey|access[_-]?key(?:[_-]?id)?|auth[_-]?key|auth|credentials?|session[_-]?key"
    r"|signing[_-]?key|authkey|license[_-]?key|webhook|cookie|munge[_-]?key|cred"
)
_QUERY: Final = (
    r"X-Amz-(?:Signature|Credential|Security-Token)|X-Goog-(?:Signature|Credential)|AWSAccessKeyId|GoogleAccessId"
    r"|Signature|Key-Pair-Id|Policy|sig|skoid|access_token|refresh_token|id_token|auth_token|token|api[_-]?key|key"
    r"|password|passwd|pwd|secret|client_secret|auth|code"
)
_NOTHING: Final = (  # what stands where a secret would, and is none
    r"(?!(?:\*+|x{3,}|None|null|nil|true|false|True|False|undefined|unset|missing|required|\.{3}|<[^>]*>|\$\{?\w*\}?"
    r"|\[[A-Z]+\])(?:[\s\"',;:)\]}&.]|$))"
)
_SECRETLIKE: Final = (  # 8 characters with a letter and a digit, or 20 letters that no words are
    r"(?=[^\s\"']{0,200}?[0-9])(?=[^\s\"']{0,200}?[A-Za-z])[A-Za-z0-9_\-./+=~:!@#%^]{8,}|[A-Za-z0-9+/=_\-]{24,}"
)
_NOT_OF_TEXT: Final = (  # of text, not of access
    r"(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)(?<!next_)(?<!last_)(?<!image_)(?<!special_)"
    r"(?<!per_)(?<!unexpected )(?<!Unexpected )(?<!invalid )(?<!added )(?<!stop_)"
)
_NO_OPTION_OF_TEXT: Final = (
    r"(?!(?:[a-z0-9]{1,30}[_-]){0,5}(?:pad|eos|bos|unk|sep|cls|mask|next|last|image|special|stop|start|end)"
    r"[_-]token)"
)

_OF_ACCESS: Final = (  # before a "pass" that is none of a compiler's, an encoder's or a network's
    r"(?:smtp|imap|mail|e?mail|ftp|sftp|ssh|ldap|bind|db|database|sql|mysql|maria(?:db)?|pg|postgres|redis|mongo(?:db)?"
    r"|rabbit(?:mq)?|amqp|mqtt|broker|http|proxy|rpc|vpn|wifi|user|admin|root|login|auth|account|acct|api|app|service"
    r"|svc|git|docker|registry|s3|minio|keystore|truststore|cert|ssl|tls|jupyter|vnc|sudo|my)"
)
_COMMANDS: Final = (  # hints, programs, and the option behind which their secret stands
    ("redis-cli", "redis-cli", r"-a\s{0,3}|--pass\s{1,3}"),
    ("ldap", "ldap(?:search|modify|add|delete|whoami|compare|modrdn)", r"-w\s{0,3}"),
    ("ldappasswd", "ldappasswd", r"-[was]\s{0,3}"),
    ("mongo", "mongo(?:sh|dump|restore|import|export)?", r"-p\s{0,3}"),
    ("zip", "(?:un)?zip", r"-P\s{0,3}"),
    ("smbclient", "smbclient", r"-U\s{0,3}['\"]?[^\s%'\"]{1,100}%"),
    ("lftp", "lftp", r"-u\s{0,3}[^\s,'\"]{1,100},"),
    ("sqlplus|expdp|impdp", "sqlplus|expdp|impdp", r"[\w$#]{1,60}/(?=[^\s@/]{1,100}@)"),
    ("openssl", "openssl", r"-pass(?:in|out)?\s{1,3}pass:"),
)

_RULES: Final = (
    _rule(
        "private key",
        r"(?P<kept>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(?!\*{4}).*?"
        r"(?P<end>-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|$)",
        _KEPT + r"\g<end>",
    ),
    _rule("hf_|api_org_", r"\b(?P<kept>hf_|api_org_)[A-Za-z0-9]{16,}"),
    _rule("gh|github_pat_", r"\b(?P<kept>gh[oprsu]_|github_pat_)[A-Za-z0-9_]{16,}"),
    _rule("gl", r"\b(?P<kept>gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas)-)[A-Za-z0-9_.\-]{16,}"),
    _rule(
        "sk-",
        r"\b(?P<kept>sk-(?:ant-|proj-|or-|svcacct-|admin-)?)(?=[A-Za-z_\-]{0,200}\d)[A-Za-z0-9_\-]{20,}",
    ),
    _rule("k_live_|k_test_", r"\b(?P<kept>[rsp]k_(?:live|test)_)[A-Za-z0-9]{12,}"),
    _rule("akia|asia|aroa|aida", r"\b(?P<kept>AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}\b"),
    _rule("xox|xapp-", r"\b(?P<kept>xox[a-z]-|xapp-)[A-Za-z0-9\-]{10,}"),
    _rule("hooks.slack.com", r"(?P<kept>hooks\.slack\.com/(?:services|workflows)/)[A-Za-z0-9/_\-]{8,}"),
    _rule("/api/webhooks/", r"(?P<kept>/api/webhooks/\d{1,20}/)[A-Za-z0-9_\-]{8,}"),
    _rule("aiza", r"\b(?P<kept>AIza)[A-Za-z0-9_\-]{30,}"),
    _rule("ya29.|gocspx-", r"\b(?P<kept>ya29\.|GOCSPX-)[A-Za-z0-9_\-]{16,}"),
    _rule("npm_|pypi-", r"\b(?P<kept>npm_|pypi-Ag)[A-Za-z0-9_\-]{30,}"),
    _rule("nvapi-|dckr_|wandb_v", r"\b(?P<kept>nvapi-|dckr_(?:pat|oat)_|wandb_v\d_)[A-Za-z0-9_\-]{16,}"),
    _rule(
        "r8_|gsk_|pplx-|dop_v1_|dapi|tgp_v1_|lsv2_|cpl_|shpat_|age-secret-key-",
        r"\b(?P<kept>r8_|gsk_|pplx-|dop_v1_|dapi|tgp_v1_|lsv2_(?:pt|sk)_|shpat_|AGE-SECRET-KEY-1)"
        r"(?=[A-Za-z_\-]{0,200}\d)[A-Za-z0-9_\-]{24,}",
    ),
    _rule("hvs.|hvb.|hvr.", r"\b(?P<kept>hv[sbr]\.)[A-Za-z0-9_\-]{20,}"),
    _rule("sg.", r"\b(?P<kept>SG\.)[A-Za-z0-9_\-]{16,64}\.[A-Za-z0-9_\-]{16,}"),
    _rule("/bot", r"(?P<kept>/bot\d{6,12}:)[A-Za-z0-9_\-]{30,}"),
    _rule("eyj", r"\b(?P<kept>eyJ)[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]*)*"),
    _rule("://", r"(?P<kept>://[^/\s:@'\"]{0,100}:)(?!\*{4}@)[^/\s'\"]{1,300}(?P<end>@)", _KEPT + r"\g<end>"),
    _rule("://", r"(?P<kept>://)(?=[^/\s:@]*\d)[^/\s:@'\"*]{16,300}(?P<end>@)", _KEPT + r"\g<end>"),
    _rule(
        "authorization",
        r"(?i)(?P<kept>\b(?:proxy-)?authorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?(?:(?:bearer|basic|token|digest|negotiate|munge)\s+)?)"
        r"(?!\*{4}|(?:bearer|basic|token|digest|negotiate|munge)\b)[^\s'\"]{4,}",
    ),
    _rule("bearer", r"(?P<kept>\b[Bb]earer\s{1,3})(?=[A-Za-z._~+/\-]{0,200}\d)[A-Za-z0-9._~+/=\-]{8,}"),
    _rule("basic", r"(?P<kept>\b[Bb]asic\s{1,3})(?=[A-Za-z+/]{0,200}[\d=])[A-Za-z0-9+/]{8,}={0,2}"),
    _rule("=", r"(?i)(?P<kept>[?&;](?:" + _QUERY + r")=)(?!\*{4}|\$)[^&\s'\"#;]{4,}"),
    _rule("password", r"(?P<kept>\blogin\s+\S{1,100}\s+password\s+)(?!\*{4})\S+"),
    _rule(  # the value alone in quotes: Invalid password 'x' for user
        "pass", r"(?P<kept>\b[Pp]ass(?:word|phrase) (?:is )?(?P<q>['\"]))(?!\*{4}['\"])(?:(?!(?P=q)).){2,200}"
    ),
    _rule("mysql", r"(?P<kept>\bmysql\w{0,10}\s(?:[^\n]{0,200}?\s)?-p)(?!\*{4})[^\s'\"]+"),
    _rule(
        "login",
        r"(?P<kept>\b(?:docker|podman|apptainer|singularity|nerdctl|helm|skopeo|az|oc)\s[^\n]{0,100}?\blogin\s"
        r"(?:[^\n]{0,200}?\s)?(?:-p|--password)[ =]['\"]?)(?!\*{4})[^\s'\"]+",
    ),
    *(
        _rule(
            hints,
            rf"(?P<kept>\b(?:{programs})\s(?:[^\n]{{0,200}}?\s)?(?:{option})['\"]?)(?!\*{{4}}|-)[^\s'\"@]+",
        )
        for hints, programs, option in _COMMANDS
    ),
    _rule("munge:", r"(?P<kept>\bMUNGE:)[A-Za-z0-9+/=]{16,}:?"),
    _rule(
        "jdbc:",
        r"(?P<kept>\bjdbc:[a-z0-9]{1,30}(?::[a-z0-9]{1,30}){0,3}:@?(?://)?[^\s/:@'\"]{1,100}/)(?!\*{4}@)[^\s@'\"]{1,300}(?P<end>@)",
        _KEPT + r"\g<end>",
    ),
    _rule(
        "wandb",
        r"(?P<kept>\bwandb\s{1,3}login\s[^\n]{0,200}?(?<=\s))(?!-|\*{4}|https?:)(?=[^\s'\"]*\d)[\w\-]{16,}",
    ),
    _rule("sshpass", r"(?P<kept>\bsshpass\s+-p\s?)(?!\*{4})(?:'[^']*'|\"[^\"]*\"|\S+)"),
    _rule("curl", r"(?P<kept>\bcurl\s.{0,300}?(?:-u|--user)[ =]?['\"]?[^\s:'\"]{1,100}:)(?!\*{4})[^\s'\"]+"),
    _rule(
        "key|login",
        r"(?i)(?P<kept>(?:\bapi[ _-]?key|\bwandb[\w .:(_-]{0,60}?(?:key|login(?: --\w{1,20}){0,4})"
        r"|[\"']key[\"'])\W{1,4})[0-9a-f]{32,86}\b",
    ),
    _rule(  # "key": "..." of credentials: no name of a tensor or a metric, which has words
        "key",
        r"(?P<kept>[\"']key[\"']\s{0,3}[:=]\s{0,3}[\"'])(?!\*{4})"
        r"(?=[^\s\"']{0,200}?\d[^\s\"']{0,200}?\d)(?=[^\s\"']{0,200}?[A-Za-z])"
        r"(?:[0-9a-f]{16,}|[A-Za-z0-9+/=]{16,}|(?=[^\"']{0,200}?[A-Z])(?=[^\"']{0,200}?[a-z])[A-Za-z0-9+/=_\-]{20,})(?=[\"'])",
    ),
    _rule(  # smtp_pass=..., --db-pass ...
        "pass|pw",
        r"(?i)(?P<kept>(?<![a-z0-9])"
        + _OF_ACCESS
        + r"[_-]?(?:pass|pw)['\"]?(?:\s{0,3}(?:=>|:=|==?|:)\s{0,3}|(?<=pass)\s{1,3}|(?<=pw)\s{1,3})['\"]?)(?!-|\*{4}|/)"
        + _NOTHING
        + r"[^\s'\"]{2,400}",
    ),
    _rule(  # of an environment: a program's own names are in small letters (forward_pass, sort_key)
        "pass|pw",
        r"(?P<kept>\b[A-Z][A-Z0-9_]{0,60}_(?:PASS|PW)['\"]?\s{0,3}[:=]\s{0,3}['\"]?)(?!\*{4})"
        + _NOTHING
        + r"(?=[^\s'\"]{0,200}[A-Za-z])[^\s'\"]{2,400}",
    ),
    _rule(
        "_key",
        r"(?P<kept>\b[A-Z][A-Z0-9_]{0,60}_KEY['\"]?\s{0,3}[:=]\s{0,3}['\"]?)(?!\*{4}|https?://|/)"
        + _NOTHING
        + r"(?:"
        + _SECRETLIKE
        + r")",
    ),
    _rule(  # 'password': 'two words', "api_key": "..."
        "pass|pwd|secret|key|signature|netrc|phrase",
        r"(?i)(?P<kept>(?:" + _SURE + r")['\"]?\s{0,3}(?:=>|:=|==?|:)\s{0,3}(?P<q>['\"]))"
        r"(?!\*{4}['\"])" + _NOTHING + r"(?:(?!(?P=q))[^\n]){1,400}",
    ),
    _rule(
        "pass|pwd|secret|key|signature|netrc|phrase",
        r"(?i)(?P<kept>(?:"
        + _SURE
        + r")['\"]?(?:\s{0,3}(?:=>|:=|=|:)\s{0,3}|(?<=--password)\s|(?<=--passwd)\s))"
        r"(?!\*{4})" + _NOTHING + r"[^\s'\"]{2,400}",
    ),
    _rule(
        "token|key|auth|cred|webhook|cookie",
        r"(?i)(?P<kept>" + _NOT_OF_TEXT + r"(?:" + _LIKELY + r")['\"]?\s{0,3}(?:=>|:=|==?|:)\s{0,3}['\"]?)"
        r"(?!\*{4}|https?://|/)" + _NOTHING + r"(?:" + _SECRETLIKE + r")",
    ),
    _rule(  # of an option, with a blank or "=" behind it
        "--",
        r"(?i)(?P<kept>(?<![\w-])--?"
        + _NO_OPTION_OF_TEXT
        + r"(?:[a-z0-9]{1,30}[_-]){0,6}(?:"
        + _SURE
        + r"|token|api[_-]?key|access[_-]?key)"
        r"(?:\s{1,3}|=(?!['\"]?(?:https?:/)?/))['\"]?)(?!-|\*{4})"
        + _NOTHING
        + r"(?=[^\s'\"]*[A-Za-z])[^\s'\"<>\[]{6,400}",
    ),
    _rule(
        "--pass|--pw",
        r"(?i)(?P<kept>(?<![\w-])--(?:pass|pw)(?:\s{1,3}|=)['\"]?)(?!-|\*{4}|/)"
        r"(?=[^\s'\"]{0,400}\d)(?=[^\s'\"]{0,400}[A-Za-z])[^\s'\"]{6,400}",
    ),
)


_MOST_PASSES = 8
"""A rule finds one secret of a command at a time: `mysql -pone -ptwo`."""


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """When first needed: most lines have no hint of a secret, and all of them together take longer than to start."""
    return re.compile(pattern)


def mask(text: str) -> str:
    """The text with every secret replaced by ``****``. Masking twice changes nothing more."""
    folded = text.lower()
    rules = [rule for rule in _RULES if any(hint in folded for hint in rule.hints)]
    for _ in range(_MOST_PASSES):
        before = text
        for rule in rules:
            text = _compiled(rule.pattern).sub(rule.into, text)
        if text == before:
            break
    return text
