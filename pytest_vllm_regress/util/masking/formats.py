"""Formats of tokens that are recognizable without context, by the prefixes that their vendors
document.

detect-secrets 1.5 is not used, because it takes 85 s for 10 MB of a log (6 s without its keywords),
requires ``requests``, and has no formats for NVIDIA, Databricks, Groq or Google's access tokens.
Its formats with a fixed prefix are among these.

They are searched only in runs of ``RUN`` or more characters that tokens consist of. A pattern
consumes what it has looked at, or looks at a bounded number of characters, so that the search is
linear.
"""

from __future__ import annotations

import re

RUN = 15
"""Length of the shortest token that is recognized."""
RUN_SIGN = b"a" * RUN
_RUN_CHARACTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
RUN_TABLE = bytes(ord("a") if code in _RUN_CHARACTERS else ord(" ") for code in range(256))
"""For ``bytes.translate``: a run becomes a run of ``a``, everything else blanks."""

# The beginning of a word. An escape sequence or an escaped character may stand before it:
# "\nhf_...", "\x1b[32mhf_...", "%3Dhf_...".
_START = rb"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf0])|(?<=[\[;\d]\dm)|(?<=\[m)|(?<=%[0-9A-Fa-f]{2})|(?<=\\x[0-9A-Fa-f]{2}))"
_ANY = rb"[A-Za-z0-9]"
_WORD = rb"[A-Za-z0-9_-]"
_MIXED = rb"(?=[A-Za-z_-]{0,40}+[0-9])"  # words of a language have no digits


def _prefixed(rest: bytes, prefixes: str) -> bytes:
    return (
        rb"(?:"
        + b"|".join(re.escape(prefix.encode()) for prefix in prefixes.split())
        + rb")"
        + rest
    )


_FORMATS = (
    # Models and their tools
    _prefixed(
        _ANY + rb"{16,}+", "hf_ api_org_ gsk_ r8_ xai- pplx- csk- jina_ rpa_ esecret_ secret_ ntn_"
    ),
    _prefixed(
        _WORD + rb"{16,}+",
        "sk- pk-lf- nvapi- tvly- pcsk_ tgp_v1_ lsv2_pt_ lsv2_sk_ wandb_v1_ bedrock-api-key-",
    ),
    _prefixed(_MIXED + _WORD + rb"{20,}+", "rnd_ glc_ pa- phc_ phx_ phs_ apify_api_ ls__"),
    _prefixed(_MIXED + _ANY + rb"{20,}+", "fw_ up_"),
    rb"fc-[0-9a-f]{32}|re_" + _MIXED + rb"[A-Za-z0-9]{6,10}_[A-Za-z0-9]{16,}+",
    # Source code and packages
    _prefixed(_ANY + rb"{16,}+", "npm_ rubygems_"),
    rb"oy2[a-z0-9]{43}|cio[A-Za-z0-9]{32}(?![A-Za-z0-9])",
    _prefixed(
        rb"[\w-]{16,}+(?:\.[\w-]++){0,2}",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ GR1348941 pypi- glpat- gldt- glft- glsoat- glrt- glrtr- glcbt- glimt- glptt- glagent- gloas- glffct-"
        " dckr_pat_ dckr_oat_ sgp_ squ_ sqp_ sqa_ CLOJARS_ CCIPAT_ CCIPRJ_ bkua_ BBDC- ATBB ATCTT3 ATATT3 figd_",
    ),
    rb"AKC[A-Za-z0-9]{20,}+|cmVmdGtuOj[A-Za-z0-9]{20,}+",
    # Clouds and hosts
    rb"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[0-9A-Z]{16}(?![0-9A-Za-z])|(?:AKIA|ASIA)[0-9A-Z]{16}|ABSK[A-Za-z0-9+/]{40,}+",
    rb"AIza[\w-]{30,}+|ya29\.[\w.-]{16,}+|GOCSPX-[\w-]{20,}+|(?<=1//)0[\w-]{28,}+",
    rb"LTAI[A-Za-z0-9]{12,}+|AKID"
    + _MIXED
    + rb"[A-Za-z0-9]{28,}+|AQVN[\w-]{30,}+|y[0-3]_[\w-]{50,}+",
    rb"d(?:api|kea|ose)[0-9a-f]{16,}+(?:-\d{1,2})?",
    _prefixed(
        rb"[\w-]{16,}+(?:\.[\w-]++)?",
        "dop_v1_ doo_v1_ dor_v1_ hvs. hvb. hvr. dp.pt. dp.st. dp.ct. dp.sa. dt0c01. HRKU- fo1_ fm1r_ fm2_ nfp_ sbp_ sb_secret_"
        " vcp_ tskey- cfut_ cfat_ pscale_tkn_ pscale_pw_ pscale_oauth_ EZAK EZTK ops_eyJ glsa_ eyJrIjoi sntrys_ sntryu_"
        " NRAK- NRJS- NRII- PMAK- lin_api_ lin_oauth_ CFPAT- p8e- AGE-SECRET-KEY-1",
    ),
    rb"[A-Za-z0-9]{14}\.atlasv1\.[\w-]{30,}+",
    # Payments, shops and mail
    _prefixed(
        rb"[\w-]{10,}+",
        "sk_live_ rk_live_ sk_test_ rk_test_ sk_prod_ whsec_ rzp_live_ rzp_test_ shippo_live_ shippo_test_ duffel_live_ duffel_test_"
        " FLWSECK_TEST- FLWSECK- sq0atp- sq0csp- sq0idp- shpat_ shpca_ shppa_ shpss_",
    ),
    rb"EAAA[EA-Z][\w-]{50,}+|EAACEdEose0cBA[A-Za-z0-9]++|amzn\.mws\.[0-9a-f-]{36}",
    rb"SG\.[\w-]{10,64}+\.[\w-]{10,}+",
    _prefixed(_WORD + rb"{20,}+", "xkeysib- xsmtpsib- mlsn."),
    rb"(?:pub)?key-[0-9a-f]{32}(?![0-9a-zA-Z])|[0-9a-z]{32}-us\d{1,2}(?!\w)|(?:AC|SK)[0-9a-z]{32}(?!\w)",
    # Chat and notes
    rb"xox[abceoprs](?:\.xox[a-z])?-[\w-]{10,}+|xapp-\d-[\w-]{10,}+",
    rb"[MNO]" + _MIXED + rb"[\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}+|(?<=\d{8}:)[\w-]{35}(?![\w-])",
    rb"pat[A-Za-z0-9]{14}\.[0-9a-f]{40,}+",
    # JSON web tokens, also encrypted ones
    rb"(?<!-)eyJ[\w-]{10,}+\.[\w-]{10,}+(?:\.[\w-]*+){0,3}",
)
TOKEN = re.compile(
    _START + rb"(?:" + rb"|".join(f"(?:{part.decode()})".encode() for part in _FORMATS) + rb")",
    re.ASCII,
)
