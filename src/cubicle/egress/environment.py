"""The variables by which programs in a sandbox find the proxy and trust it."""

from __future__ import annotations

HTTP_PORT = 3128
SOCKS_PORT = 1080
TRANSPARENT_PORT = 3131
"""Where the redirection of the transparent proxy leads."""
NAMES_PORT = 53
RESOLVER_FILE = "/etc/resolv.conf"
RESOLVER = "# The egress proxy of this sandbox\nnameserver 127.0.0.1\noptions use-vc\n"
TRUST_FILE = "/run/egress/ca.crt"
_DIRECT = "localhost,127.0.0.1,::1"


def proxy_environment(port: int = HTTP_PORT) -> dict[str, str]:
    """Proxy variables for commands: curl, git, pip, apt, npm, Node 24, Go, Python, Chromium."""
    http = f"http://127.0.0.1:{port}"
    # ALL_PROXY does not name the SOCKS side: Python's httpx, and all that is built on it, then refuses to start.
    variables = {"HTTP_PROXY": http, "HTTPS_PROXY": http, "ALL_PROXY": http, "NO_PROXY": _DIRECT}
    return {
        **variables,
        # curl heeds http_proxy in small letters only; most others take either.
        **{name.lower(): value for name, value in variables.items()},
        "npm_config_proxy": http,
        "npm_config_https_proxy": http,
        "npm_config_noproxy": _DIRECT,
        "NODE_USE_ENV_PROXY": "1",
    }


def trust_environment(path: str = TRUST_FILE) -> dict[str, str]:
    """Variables that name a bundle of certificates which holds the proxy's own authority, too."""
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS")
    return dict.fromkeys((*names, "PIP_CERT", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "npm_config_cafile"), path)
