"""Rules include, include-cycle and folder: which folder may know which.

MAY_INCLUDE speaks of units, ROOMS of the folders within a unit. To add a folder to a unit that has rooms, put it in
a row of ROOMS. Whatever the tables say, the folders' include graph has no cycle.
"""
import collections

import bounds
import calls
from tree import FOLDERS, Finding, folder_of, includes

TABLES = "tests/tidy/folders.py"
BASE = ("common/base", "common/runtime", "common/telemetry")
COMMON = (*BASE, "common/config", "common/cost", "common/model", "common/kv", "common/request", "common/guided", "common/engine",
          "common/rpc", "common/storage", "common/transfer", "common/lending", "common/node")
# What the files of a unit, at any depth, may include besides the unit itself. A name stands for all folders below it.
MAY_INCLUDE = {
    "kernels": [],
    "common/base": [],
    "common/runtime": ["common/base"],
    "common/telemetry": ["common/base", "common/runtime"],
    "common/config": BASE,
    "common/cost": ["common/base"],
    "common/model": BASE,
    "common/kv": BASE,
    "common/request": BASE,
    "common/guided": [*BASE, "common/model", "common/request"],
    "common/engine": [*BASE, "common/request", "common/kv", "common/model", "kernels/api"],
    "common/rpc": [*BASE, "common/cost", "common/request", "proto"],
    "common/storage": [*BASE, "common/kv"],
    "common/transfer": [*BASE, "common/kv", "kernels/api", "proto"],
    "common/lending": [*BASE, "common/engine", "common/kv", "common/request", "common/transfer", "kernels/api"],
    "common/node": [*COMMON, "kernels/api", "proto"],
    "prefill_node": [*COMMON, "proto"],
    "decode_node": [*COMMON, "proto"],
    "router": [*BASE, "common/config", "common/cost", "common/model", "common/kv", "common/request", "common/guided", "common/rpc",
               "proto"],
    "sim": [*COMMON, "prefill_node", "decode_node", "router", "proto"],
    "cli": [*COMMON, "prefill_node", "decode_node", "router", "sim", "kernels/api", "proto"],
    "tests": [*COMMON, "kernels", "prefill_node", "decode_node", "router", "sim", "cli", "proto"],
}
# A unit's rooms, bottom row first; "." is the unit's own folder. A room may include only rooms of rows that come
# before its own: two rooms of one row do not know each other. A unit without an entry has one folder, or any order.
ROOMS = {
    "kernels": ["api", "ref cpu", "cuda", "cuda/gpu cuda/emulator", "cuda/simt cuda/nccl", "cuda/ops", "cuda/backend",
                "cuda/backend/absent", "dispatch"],
    "common/model": ["architecture", "architecture/families", ".", "tokenizer chat_template"],
    "common/guided": [".", "json_schema"],
    "common/engine": [".", "cpu device hash"],
    "router": ["fleet", "placement", "core", "front_end", "front_end/grpc front_end/http", "process", "."],
    "sim": ["world", "checkers", ".", "trace"],
    "cli": ["files", "command_line flags client report terminal certs", "bench chat batch cluster bench_serve pull sim_trace status", "top cluster_load", "chaos bench_modes bench_lending bench_trace bench_chats", "commands", "."],
}
# The generated headers of proto/.
GENERATED = "tandem/v1"


class Layout:
    """The two tables as a question: may a file of this folder include one of that folder?"""

    def __init__(self, may_include=None, rooms=None):
        self.may_include = MAY_INCLUDE if may_include is None else may_include
        self.rows = {}  # folder -> its row, within its unit
        for unit, rows in (ROOMS if rooms is None else rooms).items():
            for row, names in enumerate(rows):
                for name in names.split():
                    self.rows[unit if name == "." else f"{unit}/{name}"] = row
        self.units_with_rooms = set(ROOMS if rooms is None else rooms)

    def unit_of(self, folder):
        """The unit that `folder` belongs to, or None."""
        while folder not in self.may_include:
            folder, _, last = folder.rpartition("/")
            if not last or not folder:
                return None
        return folder

    def allows(self, own, target):
        if own == target:
            return True
        unit = self.unit_of(own)
        if unit is None:
            return False
        if unit == self.unit_of(target):
            if unit not in self.units_with_rooms:
                return True
            return own in self.rows and target in self.rows and self.rows[target] < self.rows[own]
        return any(target == name or target.startswith(f"{name}/") for name in self.may_include[unit])


def target_folder(include):
    """The folder of an include of ours, "proto" for a generated header; None for another project's."""
    if include.startswith((f"{GENERATED}/", "proto/")):
        return "proto"
    return folder_of(include) if include.split("/")[0] in FOLDERS else None


def check_includes(path, text, layout):
    own = folder_of(path)
    for number, include in includes(text):
        target = target_folder(include)
        if target is not None and not layout.allows(own, target):
            yield Finding(path, number, "include", f"{own} may not include {target} ({include}): {TABLES}")


def check_folders(root, paths, layout):
    """Every folder with sources has its place in the tables, and the tables name nothing that is not there."""
    seen = set()
    for path in paths:
        folder = folder_of(path)
        unit = layout.unit_of(folder)
        if folder in seen:
            continue
        seen.add(folder)
        if unit is None or (unit in layout.units_with_rooms and folder not in layout.rows):
            yield Finding(path, 1, "folder", f"{folder} has no place: give it one in {TABLES}")
    if not (root / TABLES).exists():
        return
    named = {*layout.may_include, *(name for names in layout.may_include.values() for name in names), *layout.rows,
             *bounds.STATE_MACHINES, *calls.IFDEF_FILES, *(path for _, _, allowed in calls.BANNED for path in allowed)}
    for name in sorted(named):
        if not (root / name).exists():
            yield Finding(TABLES, 1, "folder", f"tests/tidy speaks of {name}, which does not exist")


def include_graph(texts):
    """graph[folder][other] = the first file of `folder` that includes one of `other`, as (path, line, include)."""
    graph = collections.defaultdict(dict)
    for path in sorted(texts):
        own = folder_of(path)
        if own.startswith("tests") and not own.startswith("tests/testing"):
            continue  # no production folder may include these
        for number, include in includes(texts[path]):
            target = target_folder(include)
            if target not in (None, own):
                graph[own].setdefault(target, (path, number, include))
    return graph


def shortest_cycle(graph, start):
    """The folders of a shortest cycle through `start`, `start` first; None when there is none."""
    came_from, queue = {}, collections.deque([start])
    while queue:
        folder = queue.popleft()
        for target in sorted(graph.get(folder, {})):
            if target == start:
                cycle = [folder]
                while cycle[-1] != start:
                    cycle.append(came_from[cycle[-1]])
                return cycle[::-1]
            if target not in came_from:
                came_from[target] = folder
                queue.append(target)
    return None


def check_cycles(texts):
    graph = include_graph(texts)
    told = set()
    for start in sorted(graph):
        cycle = shortest_cycle(graph, start)
        if cycle is None or frozenset(cycle) in told:
            continue
        told.add(frozenset(cycle))
        edges = [graph[own][target] for own, target in zip(cycle, [*cycle[1:], start])]
        shown = "; ".join(f"{path} includes {include}" for path, _, include in edges)
        yield Finding(edges[0][0], edges[0][1], "include-cycle", f"{' and '.join(cycle)} include each other: {shown}")
