"""Which URLs are fetched."""

import pytest

from frontend.fetching.urls import MAX_URL, REFUSED, MediaHosts, NotFetched, is_url
from pagewire.errors import StartupError

HOSTS = MediaHosts(
    ("Images.example.com", "cdn.example.com:8443", "http://old.example.com", "[2606:4700::1111]")
)


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("https://images.example.com/a.png", ("https", "images.example.com", 443, "/a.png")),
        ("HTTPS://IMAGES.example.COM:443/A?b=%20#c", ("https", "images.example.com", 443, "/A?b=%20")),
        ("https://cdn.example.com:8443", ("https", "cdn.example.com", 8443, "/")),
        ("http://old.example.com?x", ("http", "old.example.com", 80, "/?x")),
        ("https://[2606:4700::1111]/", ("https", "2606:4700::1111", 443, "/")),
    ],
)
def test_urls_of_hosts_that_are_named(uri: str, parts: tuple[str, str, int, str]) -> None:
    url = HOSTS.read(uri)
    assert (url.scheme, url.host, url.port, url.target) == parts
    assert HOSTS.read(str(url)) == url


@pytest.mark.parametrize(
    "uri",
    [
        *("https://example.com/", "https://a.images.example.com/", "https://images.example.com.evil.com/"),
        *("http://images.example.com/", "https://old.example.com/", "https://images.example.com:8443/"),
        *("https://cdn.example.com/", "https://127.0.0.1/", "https://2130706433/", "https://[::1]/"),
    ],
)
def test_all_others_are_refused_alike(uri: str) -> None:
    with pytest.raises(NotFetched) as caught:
        HOSTS.read(uri)
    assert str(caught.value) == REFUSED


@pytest.mark.parametrize(
    "uri",
    [
        *("https://user:secret@images.example.com/", "https://images.example.com\\@evil.com/", "https:///a"),
        *(
            "https://images.example.com/a b",
            "https://images.example.com/\r\nHost: x",
            "https:images.example.com",
        ),
        *("https://images.example.com/é", "https://ïmages.example.com/", "ftp://images.example.com/"),
        *("https://images.example.com:/", "https://images.example.com:123456/", "file:///etc/passwd"),
        "https://images.example.com/" + "a" * MAX_URL,
    ],
)
def test_what_is_no_url(uri: str) -> None:
    with pytest.raises(NotFetched, match="must be a URL like") as caught:
        HOSTS.read(uri)
    assert "secret" not in str(caught.value)


def test_any_host_by_https_alone() -> None:
    hosts = MediaHosts(("*",))
    assert hosts.read("https://whatever.example/").host == "whatever.example"
    for uri in ("http://whatever.example/", "https://whatever.example:22/"):
        with pytest.raises(NotFetched, match="is not fetched"):
            hosts.read(uri)
    assert MediaHosts(("http://*",)).read("http://whatever.example/").port == 80


@pytest.mark.parametrize("entry", ["", "https://a/path", "a b", "ftp://a", "*.example.com", "a:b", "u@a"])
def test_a_flag_that_names_no_host(entry: str) -> None:
    with pytest.raises(StartupError, match="--media-hosts"):
        MediaHosts((entry,))


def test_schemes_that_name_a_file_elsewhere() -> None:
    assert is_url("https://a/") and is_url("HTTP://a") and is_url("http:a")
    assert not is_url("data:image/png;base64,AA==") and not is_url("file:///a") and not is_url("httpsx:a")
    assert not MediaHosts()
