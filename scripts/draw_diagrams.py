#!/usr/bin/env python3
"""Draws the pictures of the documents: docs/pictures/*.svg.

    draw_diagrams.py            writes the files
    draw_diagrams.py --check    exits with 1 if a committed file differs

Python's standard library only. Equal input gives equal bytes; tests/scripts/documents_test.py holds
the committed files to this script's output. Colours follow the reader's light or dark theme.
"""

import argparse
import sys
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"

STYLE = """
    svg { color-scheme: light dark; }
    .paper { fill: #ffffff; }
    .ink { fill: #0f172a; }
    .soft { fill: #475569; }
    .line { stroke: #475569; stroke-width: 1.6; fill: none; marker-end: url(#tip); }
    .plain { stroke: #94a3b8; stroke-width: 1.4; fill: none; }
    .tip { fill: #475569; }
    .data { stroke: #c2410c; stroke-width: 3; fill: none; marker-end: url(#datatip); }
    .datatip, .dataink { fill: #c2410c; }
    .dashed { stroke-dasharray: 6 4; }
    .box { fill: #f1f5f9; stroke: #64748b; stroke-width: 1.5; }
    .router { fill: #e0f2fe; stroke: #0369a1; stroke-width: 1.5; }
    .prefill { fill: #fef9c3; stroke: #a16207; stroke-width: 1.5; }
    .decode { fill: #dcfce7; stroke: #15803d; stroke-width: 1.5; }
    .danger { fill: #fee2e2; stroke: #b91c1c; stroke-width: 1.5; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; }
      .ink { fill: #f1f5f9; }
      .soft { fill: #a8b5c7; }
      .line { stroke: #a8b5c7; }
      .plain { stroke: #64748b; }
      .tip { fill: #a8b5c7; }
      .data { stroke: #fb923c; }
      .datatip, .dataink { fill: #fb923c; }
      .box { fill: #1e293b; stroke: #94a3b8; }
      .router { fill: #0c3a52; stroke: #38bdf8; }
      .prefill { fill: #423306; stroke: #eab308; }
      .decode { fill: #0b3b1e; stroke: #4ade80; }
      .danger { fill: #4c1414; stroke: #f87171; }
    }
"""


class Picture:
    """One SVG. Coordinates are pixels; `add` order is paint order."""

    def __init__(self, name, width, height, title, description):
        self.name, self.width, self.height = name, width, height
        self.title, self.description = title, description
        self.parts = []

    def box(self, x, y, width, height, lines, kind="box"):
        """A rounded box; the first of `lines` is bold. (x, y) is its centre."""
        left, top = x - width / 2, y - height / 2
        self.parts.append(f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" '
                          f'rx="8" class="{kind}"/>')
        first = y - (len(lines) - 1) * 9 + 5
        for number, line in enumerate(lines):
            weight = ' font-weight="bold"' if number == 0 else ' font-size="13"'
            self.parts.append(f'<text x="{x:g}" y="{first + number * 18:g}" class="ink" '
                              f'text-anchor="middle"{weight}>{escape(line)}</text>')

    def line(self, points, kind="line"):
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path d="{path}" class="{kind}"/>')

    def text(self, x, y, line, anchor="middle", kind="soft", size=13, weight=""):
        weight = f' font-weight="{weight}"' if weight else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}" '
                          f'font-size="{size}"{weight}>{escape(line)}</text>')

    def svg(self):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="15" role="img" '
                'aria-labelledby="title description">')
        tip = ('<marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
               '<path d="M0 0 L9 4 L0 8 z" class="tip"/></marker>')
        datatip = ('<marker id="datatip" markerUnits="userSpaceOnUse" markerWidth="14" '
                   'markerHeight="12" refX="11" refY="6" orient="auto">'
                   '<path d="M0 0 L14 6 L0 12 z" class="datatip"/></marker>')
        lines = [head, f'  <title id="title">{escape(self.title)}</title>',
                 f'  <desc id="description">{escape(self.description)}</desc>',
                 f"  <style>{STYLE}  </style>", f"  <defs>{tip}{datatip}</defs>",
                 f'  <rect width="{self.width}" height="{self.height}" rx="10" class="paper"/>']
        lines += ["  " + part for part in self.parts]
        return "\n".join(lines) + "\n</svg>\n"


def bars(p, left, top, width, height, names, groups, most, unit, rows):
    """A chart of bars: `groups` is a list of (label, one value for each of `names`), from 0 to
    `most` with a line for each of `rows`. `names`: (name, class) of the bars of a group."""
    bottom = top + height
    for row in rows:
        y = bottom - height * row / most
        p.line([(left, y), (left + width, y)], "plain")
        p.text(left - 8, y + 4, f"{row:g}", "end")
    p.text(left - 8, top - 14, unit, "start")
    step = width / len(groups)
    wide = min(40, step * 0.8 / len(names))
    for number, (label, values) in enumerate(groups):
        middle = left + step * (number + 0.5)
        for index, ((_, kind), value) in enumerate(zip(names, values)):
            x = middle + (index - len(names) / 2) * wide
            tall = height * value / most
            p.parts.append(f'<rect x="{x + 1:g}" y="{bottom - tall:g}" width="{wide - 2:g}" '
                           f'height="{tall:g}" class="{kind}"/>')
            p.text(x + wide / 2, bottom - tall - 5, f"{value:g}", size=11)
        for line, text in enumerate(label.split("\n")):
            p.text(middle, bottom + 18 + 16 * line, text)
    x = left + width
    for name, kind in reversed(names if len(names) > 1 else []):
        p.text(x, top - 14, name, "end")
        x -= 8 * len(name) + 20
        p.parts.append(f'<rect x="{x:g}" y="{top - 25:g}" width="12" height="12" class="{kind}"/>')
        x -= 16


def lending_contexts():
    p = Picture("lending_contexts", 760, 300, "The longest prompt, by nodes that lend",
                "Measured with real processes and the hash engine, in pools of one node. "
                "1 node: 0.94. 2 nodes: 1.5. 4 nodes: 2.62. 5 nodes: 3.2. In the simulator, "
                "32 nodes hold a sequence of 19 pools.")
    bars(p, 60, 50, 660, 190, [("pools", "decode")],
         [("1 node", [0.94]), ("2 nodes", [1.5]), ("4 nodes", [2.62]), ("5 nodes", [3.2]),
          ("32 nodes\n(simulator)", [19])], 20, "pools of one node", (0, 5, 10, 15, 20))
    return p


def lending_mixes():
    p = Picture("lending_mixes", 760, 330, "Tokens a second of mixes of long and short requests",
                "Four nodes in virtual time; 0 to 4 of them hold one long request each; many short "
                "ones of 2 blocks come. Without lending, with planned loans, and a model of "
                "migration that costs nothing: 1401, 1401, 1513; 1129, 1348, 1218; 858, 1159, 923; "
                "541, 1076, 686; 382, 382, 365.")
    bars(p, 60, 50, 660, 210,
         [("no lending", "box"), ("lending", "decode"), ("migration (model)", "prefill")],
         [("0 nodes with\na long request", [1401, 1401, 1513]), ("1", [1129, 1348, 1218]),
          ("2", [858, 1159, 923]), ("3", [541, 1076, 686]), ("4", [382, 382, 365])],
         1600, "tokens a second", (0, 400, 800, 1200, 1600))
    return p


def cluster():
    p = Picture("cluster", 920, 400, "A Tandem cluster",
                "A client asks the router. The router reserves blocks on a decode node and sends the "
                "prompt to a prefill node. The prefill node pushes the KV cache to the decode node. "
                "Tokens stream back through the router.")
    p.box(89, 192, 130, 84, ["client", "gRPC or HTTP"])
    p.box(395, 192, 190, 144,
          ["router", "tokenizer, chat template", "prefix index", "placement of both legs",
           "deadlines, retries"], "router")
    for shift in (8, 0):
        p.box(778 + shift, 80 + shift, 220, 112,
              ["prefill nodes", "prompt in chunks", "prefix reuse", "KV blocks"] if not shift
              else [""], "prefill")
    for shift in (8, 0):
        p.box(778 + shift, 312 + shift, 220, 112,
              ["decode nodes", "continuous batching", "prefix reuse", "KV blocks"] if not shift
              else [""], "decode")
    p.line([(154, 180), (298, 180)])
    p.line([(300, 206), (156, 206)], "line dashed")
    p.line([(490, 150), (666, 84)])
    p.line([(490, 234), (666, 300)])
    p.line([(666, 322), (490, 256)], "line dashed")
    p.line([(778, 138), (778, 252)], "data")
    p.text(226, 171, "1 prompt")
    p.text(228, 226, "5 tokens, streamed")
    p.text(566, 98, "3 prefill")
    p.text(612, 258, "2 reserve")
    p.text(556, 312, "tokens")
    p.text(766, 190, "4 KV blocks, layer by layer", "end", "dataink")
    p.text(766, 209, "UCX: shared memory or TCP", "end", "dataink")
    p.text(24, 380, "Solid: requests and commands. Dashed: answers. Nodes dial the router; "
                    "one stream each.", "start")
    return p


def router_sequence():
    p = Picture("router_sequence", 1000, 330, "States of a sequence in the router",
                "Queued, Reserving, Prefilling, Installing, Generating, Done. A lost prefill leg "
                "leads back to Reserving, a lost decode leg back to Queued.")
    names = ["Queued", "Reserving", "Prefilling", "Installing", "Generating", "Done"]
    xs = [80 + 168 * i for i in range(6)]
    for x, name in zip(xs, names):
        p.box(x, 150, 106, 46, [name], "decode" if name == "Done" else "router")
    labels = [["placed"], ["Reserved"], ["first", "token"], ["Installed"], ["end token,", "length, stop"]]
    for i, lines in enumerate(labels):
        p.line([(xs[i] + 53, 150), (xs[i + 1] - 55, 150)])
        middle = (xs[i] + xs[i + 1]) / 2
        for n, line in enumerate(lines):
            p.text(middle, 118 - 15 * (len(lines) - 1 - n), line)
    p.line([(xs[1], 127), (xs[1], 64), (xs[4], 64), (xs[4], 125)])
    p.text((xs[1] + xs[4]) / 2, 54, "the decode node computes the prompt itself")
    p.line([(xs[1] - 20, 173), (xs[1] - 20, 214), (xs[0] + 24, 214), (xs[0] + 24, 175)])
    p.text((xs[0] + xs[1]) / 2 + 2, 206, "Refused")
    for x in (xs[2], xs[3]):
        p.line([(x, 173), (x, 214)], "plain")
    p.line([(xs[3], 214), (xs[1] + 20, 214), (xs[1] + 20, 175)])
    p.text((xs[1] + xs[2]) / 2 + 12, 232, "prefill leg lost: NewEpoch")
    p.line([(xs[4], 173), (xs[4], 270), (xs[0] - 24, 270), (xs[0] - 24, 175)])
    p.text((xs[0] + xs[4]) / 2, 262, "decode leg lost, in any state: prompt + delivered tokens, next attempt")
    p.text(24, 310, "Every state has a deadline. A cancel, or the last allowed attempt, leads from any "
                    "state to Done.", "start")
    return p


def decode_leg():
    p = Picture("decode_leg", 1000, 410, "States of a decode leg on its node",
                "StartDecode reserves blocks. The leg receives the prompt's KV under a lease, or "
                "computes the prompt itself, then generates until it finishes, is retained for a "
                "migration, or ends early; then its blocks stay in quarantine.")
    p.box(80, 140, 130, 46, ["StartDecode"])
    p.box(300, 140, 130, 58, ["Receiving", "lease open"], "decode")
    p.box(620, 140, 130, 46, ["Generating"], "decode")
    p.box(890, 140, 150, 46, ["LegFinished"])
    p.box(300, 280, 130, 58, ["Closing", "lease drains"], "danger")
    p.box(620, 280, 130, 58, ["Computing", "no lease"], "decode")
    p.box(890, 280, 170, 58, ["retained", "until it is migrated"], "prefill")
    p.line([(145, 140), (233, 140)])
    p.text(188, 131, "Reserved")
    p.line([(90, 163), (90, 345), (620, 345), (620, 311)])
    p.text(350, 337, "computes locally: little is missing, or no prefill node can take it")
    p.line([(365, 140), (553, 140)])
    p.text(458, 131, "LeaseInstalled")
    p.line([(300, 169), (300, 249)])
    p.text(310, 205, "NewEpoch, and little is missing", "start")
    p.line([(365, 280), (553, 280)])
    p.text(458, 271, "LeaseDrained")
    p.line([(620, 251), (620, 165)])
    p.text(612, 212, "first token", "end")
    p.line([(685, 140), (813, 140)])
    p.text(749, 131, "stop or length")
    p.line([(670, 163), (800, 252)])
    p.text(750, 205, "StartMigration", "start")
    p.line([(265, 111), (265, 76), (335, 76), (335, 109)])
    p.text(300, 48, "LeaseFailed: waits for NewEpoch;")
    p.text(300, 65, "then Reserved again, for another sender")
    p.line([(60, 163), (60, 375)])
    p.text(70, 392, "Refused: no room, or draining", "start")
    p.text(975, 374, "Abort, deadline or a lost router ends any state;", "end")
    p.text(975, 392, "blocks of an open lease stay in quarantine until it has drained.", "end")
    return p


def prefill_leg():
    p = Picture("prefill_leg", 920, 250, "States of a prefill leg on its node",
                "Prefill is refused or starts computing. After the prompt's last row the leg is "
                "Pushed, and gone when the export is done. Blocks are pinned until the export ends.")
    p.box(70, 90, 100, 46, ["Prefill"])
    p.box(310, 90, 150, 58, ["Computing", "pushes each layer"], "prefill")
    p.box(590, 90, 150, 58, ["Pushed", "waits for the ACK"], "prefill")
    p.box(835, 90, 140, 58, ["gone", "blocks stay cached"])
    p.box(450, 200, 170, 58, ["Abandoned", "export is cancelled"], "danger")
    p.line([(120, 90), (233, 90)])
    p.text(176, 81, "accepted")
    p.line([(385, 90), (513, 90)])
    p.text(449, 81, "prompt computed")
    p.line([(665, 90), (763, 90)])
    p.text(713, 81, "ExportDone")
    p.line([(330, 119), (380, 169)])
    p.line([(575, 119), (520, 169)])
    p.text(280, 148, "abort, deadline,", "middle")
    p.text(280, 164, "router lost, step failed", "middle")
    p.line([(535, 200), (835, 200), (835, 121)])
    p.text(690, 191, "ExportDone or ExportFailed")
    p.line([(50, 113), (50, 170)])
    p.text(60, 190, "Refused", "start")
    return p


def block_states():
    p = Picture("block_states", 900, 300, "States of a KV block in its pool",
                "Free, used, cached and quarantined. A block that can be found becomes cached when its "
                "last owner leaves; a block that a peer may still write is quarantined first.")
    p.box(110, 110, 130, 58, ["free"])
    p.box(432, 110, 156, 58, ["used", "1 or more references"], "decode")
    p.box(773, 110, 156, 58, ["cached", "found by hash or part"], "router")
    p.box(270, 245, 190, 58, ["quarantined", "a peer may still write"], "danger")
    p.line([(175, 100), (353, 100)])
    p.text(264, 91, "Allocate")
    p.line([(355, 122), (177, 122)])
    p.text(264, 140, "Unref, cannot be found")
    p.line([(505, 100), (693, 100)])
    p.text(600, 91, "last Unref, can be found")
    p.line([(695, 122), (507, 122)])
    p.text(600, 140, "Match, PinPart")
    p.line([(770, 81), (770, 40), (430, 40), (430, 79)])
    p.text(600, 31, "Allocate evicts the least recently used block")
    p.line([(420, 139), (420, 245), (367, 245)])
    p.text(428, 185, "Quarantine: the lease ended early", "start")
    p.line([(175, 245), (110, 245), (110, 141)])
    p.text(118, 180, "EndQuarantine:", "start")
    p.text(118, 196, "the lease has drained", "start")
    p.text(500, 262, "free + cached + used + quarantined = total, always", "start")
    return p


def kv_transfer():
    p = Picture("kv_transfer", 880, 590, "One KV transfer",
                "The router sends StartDecode to the decode node, which opens a lease and answers "
                "Reserved. The router sends Prefill to the prefill node, which pushes the KV of each "
                "layer. The decode node checks each header and checksum. After FIN it acknowledges, "
                "and the prefill node unpins its blocks.")
    router, prefill, decode = 110, 430, 770
    for x, name, kind in ((router, "router", "router"), (prefill, "prefill node P", "prefill"),
                          (decode, "decode node D", "decode")):
        p.box(x, 40, 180, 44, [name], kind)
        p.line([(x, 62), (x, 575)], "plain")
    step = {"y": 104}

    def message(start, end, label, kind="line", gap=38, below=""):
        y = step["y"]
        direction = 1 if end > start else -1
        p.line([(start + 4 * direction, y), (end - 4 * direction, y)], kind)
        ink = "dataink" if kind == "data" else "soft"
        # Labels stand in the half of the arrow that crosses no other lifeline.
        where = (start + end) / 2 if abs(end - start) < 400 else (prefill + end) / 2
        if abs(end - start) >= 400 and end == router:
            where = (prefill + start) / 2
        p.text(where, y - 7, label, kind=ink)
        if below:
            p.text(where, y + 16, below, kind=ink)
        step["y"] += gap

    def note(x, line, anchor="start"):
        p.text(x + (10 if anchor == "start" else -10), step["y"] - 8, line, anchor, "ink", 12)
        step["y"] += 20

    message(router, decode, "StartDecode", gap=26)
    note(decode, "allocates blocks,", "end")
    note(decode, "opens lease 7, epoch 1", "end")
    step["y"] += 4
    message(decode, router, "Reserved: lease 7, epoch 1, cached tokens")
    message(router, prefill, "Prefill: lease 7, epoch 1, D's address", gap=26)
    note(prefill, "computes layer 0")
    step["y"] += 6
    message(prefill, decode, "KvData: layer 0 of some blocks", "data", gap=26)
    note(decode, "checks the header, names the place,", "end")
    note(decode, "checks the checksum", "end")
    step["y"] += 6
    message(prefill, decode, "KvData: layer 1, and so on, while P computes", "data", gap=30)
    note(prefill, "samples the first token")
    step["y"] += 4
    message(prefill, router, "first token")
    message(prefill, decode, "KvFin: number of frames, first token")
    message(decode, prefill, "KvNack: only if a range is missing or damaged", "line dashed")
    message(decode, prefill, "KvAck: all is verified", gap=26)
    note(prefill, "unpins the blocks; they stay cached")
    step["y"] += 4
    message(decode, router, "Installed, then tokens of each step")
    return p


PICTURES = (cluster, router_sequence, decode_leg, prefill_leg, block_states, kv_transfer,
            lending_contexts, lending_mixes)


def outputs():
    """(path, content) of every picture."""
    for draw in PICTURES:
        picture = draw()
        yield FOLDER / f"{picture.name}.svg", picture.svg()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    stale = [path for path, content in outputs()
             if not path.exists() or path.read_text(encoding="utf-8") != content]
    for path in stale:
        print(f"{path}: {'differs from scripts/draw_diagrams.py' if check else 'written'}")
    if check:
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for path, content in outputs():
        path.write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
