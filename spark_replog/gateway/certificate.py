"""The name that a client's certificate gives it, as Kafka's default principal builder writes it. Pure.

The subject is read from the certificate's bytes: what Python tells of it has lost the order within a name and the types
of values. Source: ``X500Principal.getName`` (RFC 2253).
"""

from __future__ import annotations

from typing import NamedTuple

_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_SUBJECT_AT = 4
"""After serial number, algorithm, issuer and validity."""
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ENCODINGS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
"""Of the types of text: UTF8String, PrintableString, T61String, IA5String, UniversalString, BMPString."""
_ESCAPED = ',=+<>#;"\\'


class _Element(NamedTuple):
    """One value of DER: its type, its content, and all of its bytes."""

    tag: int
    content: bytes
    whole: bytes


def subject_name(certificate: bytes) -> str:
    """Return the subject of a certificate in DER, such as ``CN=alice,O=example``.

    Raises:
        ValueError: it is no certificate.
    """
    (whole,) = _elements(certificate)
    fields = [field for part in _elements(whole.content)[:1] for field in _elements(part.content)]
    if fields and fields[0].tag == _VERSION:
        fields = fields[1:]
    if len(fields) <= _SUBJECT_AT or fields[_SUBJECT_AT].tag != _SEQUENCE:
        raise ValueError("it has no subject")
    names = _elements(fields[_SUBJECT_AT].content)
    return ",".join("+".join(_pair(pair) for pair in _elements(name.content)) for name in reversed(names))


def _elements(data: bytes) -> list[_Element]:
    """Return the values that follow each other in some bytes. Raises ValueError."""
    elements, at = [], 0
    while at < len(data):
        start, tag = at, data[at]
        if at + 2 > len(data):
            raise ValueError("it ends within a value")
        size_bytes, at = data[at + 1], at + 2
        if size_bytes & 0x80:
            count = size_bytes & 0x7F
            size_bytes, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + size_bytes > len(data):
            raise ValueError("it ends within a value")
        elements.append(_Element(tag, data[at : at + size_bytes], data[start : at + size_bytes]))
        at += size_bytes
    return elements


def _pair(pair: _Element) -> str:
    parts = _elements(pair.content)
    if len(parts) != 2 or parts[0].tag != _OID:
        raise ValueError("a name is no pair")
    kind, value = _oid(parts[0].content), parts[1]
    keyword, encoding = _KEYWORDS.get(kind), _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or kind}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.content.decode(encoding))}"


def _oid(data: bytes) -> str:
    if not data:
        raise ValueError("a name has no type")
    numbers, value = [], 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2) if numbers else 0
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]])) if numbers else ""


def _escaped(text: str) -> str:
    out = "".join("\\00" if char == "\0" else f"\\{char}" if char in _ESCAPED else char for char in text)
    inner = out.strip(" ")
    if not inner:
        return "\\ " * len(out)
    left, right = len(out) - len(out.lstrip(" ")), len(out) - len(out.rstrip(" "))
    return "\\ " * left + inner + "\\ " * right
