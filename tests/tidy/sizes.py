"""Rules file-size and function-size."""
import re

from tree import Finding

FILE_LINES = 500
FUNCTION_LINES = 60


def check_size(path, text):
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield Finding(path, lines, "file-size", f"{lines} lines, expected at most {FILE_LINES}")


NOT_FUNCTIONS = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b(?![^{]*\)\s*(?:const|noexcept|override|final|\s)*$)")


def check_functions(path, code):
    """Finds bodies by matching braces: a body begins with a brace, at namespace or class level, after a parameter list."""
    # Preprocessor lines may hold unbalanced braces.
    code = re.sub(r"(?m)^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), code)
    stack = []  # (is a scope that may hold functions, line)
    start = 0   # of the text since the last ; { or } at scope level
    line = 1
    function = None
    for i, c in enumerate(code):
        if c == "\n":
            line += 1
        elif c == "{":
            if function is None:
                head = re.sub(r"^\s*(?:public|private|protected)\s*:", "", code[start:i])
                is_scope = bool(NOT_FUNCTIONS.search(head)) or not head.strip()
                if not is_scope and ")" in head:
                    # The head's first line is where a reader sees the function begin.
                    first = line - head.lstrip().count("\n")
                    name = re.search(r"([\w:~]+|operator\S+)\s*\(", head)
                    has_initialisers = bool(re.search(r"\)\s*(?:noexcept\s*)?:(?!:)", head))
                    function = (len(stack), first, name.group(1) if name else "?", has_initialisers)
                stack.append(is_scope)
            else:
                stack.append(False)
            start = i + 1
        elif c == "}":
            if stack:
                stack.pop()
            # `b_{2} {` and `b_{2}, c_(3) {`: a member initialiser ended, not the function.
            initialiser = function is not None and function[3] and re.match(r"\s*[,{]", code[i + 1:i + 200])
            if function is not None and len(stack) == function[0] and not initialiser:
                length = line - function[1] + 1
                if length > FUNCTION_LINES:
                    yield Finding(path, function[1], "function-size",
                                  f"{function[2]} has {length} lines, expected at most {FUNCTION_LINES}")
                function = None
            start = i + 1
        elif c == ";" and function is None:
            start = i + 1
