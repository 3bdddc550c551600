import hashlib

from pagewire.media import media_digest


def test_the_digest_is_of_kind_shape_and_elements() -> None:
    head = b"\1\0\0\0\2\0\0\0\1\0\0\0\3\0\0\0"
    wanted = hashlib.blake2b(head + b"abcdef", digest_size=32).digest()
    assert media_digest(1, (2, 1, 3), b"abcdef") == wanted


def test_another_kind_shape_or_element_is_another_digest() -> None:
    items = [
        (1, (2, 1, 3), b"abcdef"),
        (2, (2, 1, 3), b"abcdef"),
        (1, (1, 2, 3), b"abcdef"),
        (1, (2, 1, 3), b"abcdeg"),
    ]
    assert len({media_digest(*each) for each in items}) == len(items)
