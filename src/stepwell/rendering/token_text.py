"""How byte-level tokenizers write bytes as letters."""

from __future__ import annotations


def map_byte_letters() -> dict[str, int]:
    """The letter that byte-level tokenizers write for each byte: itself if printable, else one above 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(hidden)}
