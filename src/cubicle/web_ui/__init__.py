"""The pages for people, and their built assets.

A page is a shell of HTML with a few facts in one attribute; all else is done by the scripts of `web/`, built
into `static/`. Nothing here knows a sandbox, and nothing here decides who may see what: that is the HTTP
door's work.
"""

from cubicle.web_ui.pages import Pages

__all__ = ["Pages"]
