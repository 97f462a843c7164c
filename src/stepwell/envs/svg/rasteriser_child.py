"""The process that draws: reads checked SVG from its input, writes PNG to its output, can do nothing else.

It is started by path, imports the rasteriser from the folder that is named to it, and then gives up the right
to open files and sockets, to write, and to hold more memory than `MAX_BYTES`. Whatever a drawing does to it,
the process that trains goes on: `rasteriser.py` starts another.

One request is `<length><size>` (two little-endian uint32) and the text; one answer is `<ok><length>`
(a byte, a uint32) and PNG bytes or the reason in words.
"""

from __future__ import annotations

import resource
import struct
import sys

MAX_BYTES = 1 << 30
REQUEST, ANSWER = struct.Struct("<II"), struct.Struct("<BI")


def main() -> None:
    """Answer requests until the input ends."""
    sys.path.append(sys.argv[1])  # `-I` leaves PYTHONPATH out, which may be where the package is
    import resvg_py

    for limit, most in (
        (resource.RLIMIT_AS, MAX_BYTES),
        (resource.RLIMIT_NOFILE, 3),  # what is open stays open: input, output, errors
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while len(header := source.read(REQUEST.size)) == REQUEST.size:
        length, size = REQUEST.unpack(header)
        text = source.read(length).decode()
        try:
            png = resvg_py.svg_to_bytes(
                svg_string=text, width=size, height=size, skip_system_fonts=True, background="#ffffff"
            )
            answer = ANSWER.pack(1, len(png)) + bytes(png)
        except BaseException as error:  # a panic of the rasteriser is no Exception
            reason = f"{type(error).__name__}: {error}".encode()[:500]
            answer = ANSWER.pack(0, len(reason)) + reason
        sink.write(answer)
        sink.flush()


if __name__ == "__main__":
    main()
