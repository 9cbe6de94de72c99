#!/usr/bin/env python3
"""Writes goldens.json: what jinja2, configured as transformers configures it, makes of our templates."""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from expressions import EXPRESSIONS, SYNTAX, VARIABLES

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2025, 3, 7, 14, 5, 9, tzinfo=datetime.timezone.utc)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    for name in ("lipsum", "cycler", "joiner"):
        env.globals.pop(name)
    return env


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather <now> & \"later\" in Zürich's streets",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "A city, e.g. 東京"},
            "days": {"type": "integer", "minimum": 1, "default": 3},
            "share": {"type": "number", "maximum": 0.5}}, "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "stop", "description": "", "parameters": {"type": "object", "properties": {}},
        "return": {"type": "null"}}},
]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def call(name, arguments, **more):
    return {"role": "assistant", "content": "", "tool_calls": [
        {"id": "abcdef012", "type": "function", "function": {"name": name, "arguments": arguments}}], **more}


SYSTEM = {"role": "system", "content": "  You are terse. \n"}
RESULT = {"role": "tool", "tool_call_id": "abcdef012", "name": "get_weather", "content": "{\"degrees\": 7}"}
CONVERSATIONS = {
    "question": {"messages": [user("What is the capital of France?")]},
    "no prompt": {"messages": [user("Hi"), assistant("Hello!")], "add_generation_prompt": False},
    "system": {"messages": [SYSTEM, user("Hi")]},
    "system twice": {"messages": [SYSTEM, user("Hi"), SYSTEM, user("Again")]},
    "turns": {"messages": [user(" Hi \n"), assistant(" Hello! "), user("Bye\r\nnow"), assistant(""), user("?")]},
    "unicode": {"messages": [SYSTEM, user("Grüße 👩‍👩‍👧 naïve 東京 \u00a0\u2028 x\t"), assistant("ﬁn ß İ"), user("\u0000\u0007")]},
    "markup": {"messages": [user("<b>&amp;\"quotes\" 'single' {{ messages }} {% raw %} \\n")]},
    "two users": {"messages": [user("a"), user("b")]},
    "assistant first": {"messages": [assistant("a"), user("b")]},
    "unknown role": {"messages": [user("a"), {"role": "narrator", "content": "b"}]},
    "no content": {"messages": [{"role": "user"}]},
    "none content": {"messages": [user("a"), {"role": "assistant", "content": None}]},
    "parts": {"messages": [{"role": "user", "content": [
        {"type": "text", "text": " look "}, {"type": "image"}, {"type": "text", "text": "here"}]}]},
    "system parts": {"messages": [{"role": "system", "content": [{"type": "text", "text": "Be brief"}]}, user("Hi")]},
    "empty": {"messages": []},
    "tools": {"messages": [user("Weather?")], "tools": TOOLS},
    "tools and system": {"messages": [SYSTEM, user("Weather?")], "tools": TOOLS},
    "tool turn": {"messages": [user("Weather?"), call("get_weather", {"city": "Zürich", "days": 2, "share": 1e-7}),
                               RESULT, assistant("7 degrees."), user("Thanks")], "tools": TOOLS},
    "tool results": {"messages": [user("Weather?"), call("get_weather", {"city": "A"}), RESULT, RESULT], "tools": TOOLS},
    "text arguments": {"messages": [user("W"), call("get_weather", "{\"city\": \"B\"}"), RESULT], "tools": TOOLS},
    "two calls": {"messages": [user("W"), {"role": "assistant", "content": "Let me see", "tool_calls": [
        {"id": "abcdef012", "function": {"name": "a", "arguments": {}}},
        {"id": "short", "function": {"name": "b", "arguments": {"x": [1, None, True]}}}]}], "tools": TOOLS},
    "empty tools": {"messages": [user("Hi")], "tools": []},
    "tools for system": {"messages": [SYSTEM, user("W")], "tools": TOOLS, "extra": {"tools_with_user": False}},
    "built in": {"messages": [user("W"), call("search", {"query": "x"}), RESULT],
                 "extra": {"builtin_tools": ["search", "python"], "stamp": "today"}},
    "thinking": {"messages": [user("2+2?"), assistant("<think>\nhm\n</think>\n\n4"), user("3+3?"),
                              {"role": "assistant", "content": "6", "reasoning_content": " easy "}]},
    "thinking tools": {"messages": [user("W"), call("get_weather", {"city": "A"}, reasoning_content="ask"), RESULT,
                                    assistant("<think>ok</think>Done")], "tools": TOOLS},
    "no thinking": {"messages": [user("2+2?")], "extra": {"enable_thinking": False}},
    "thinking on": {"messages": [SYSTEM, user("2+2?")], "extra": {"enable_thinking": True}},
    "tool response text": {"messages": [user("real"), user("<tool_response>x</tool_response>")]},
    "documents": {"messages": [user("Read")], "documents": [{"title": "T", "text": "X"}]},
    "long": {"messages": [m for i in range(30) for m in (user(f"Question {i}? " * 40), assistant(f"Answer {i}. " * 40))]},
}


def render(source, **variables):
    try:
        return {"output": environment().from_string(source).render(**variables)}
    except jinja2.exceptions.TemplateError as error:
        result = {"error": type(error).__name__}
        if type(error) is jinja2.exceptions.TemplateError:
            result["message"] = str(error)
        if isinstance(error, jinja2.TemplateSyntaxError):
            result["line"] = error.lineno
        return result
    except (TypeError, ValueError, ZeroDivisionError, RecursionError, IndexError, KeyError, OverflowError,
            AttributeError, SyntaxError) as error:
        return {"error": type(error).__name__}


def main():
    conversations = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        for name, case in CONVERSATIONS.items():
            variables = {"messages": case["messages"], "tools": case.get("tools"), "documents": case.get("documents"),
                         "add_generation_prompt": case.get("add_generation_prompt", True),
                         "bos_token": "<s>", "eos_token": "</s>", **case.get("extra", {})}
            conversations.append({"template": path.name, "case": name, **render(source, **variables)})
    expressions = [{"source": "{{ " + line.strip() + " }}"} for line in EXPRESSIONS.strip().splitlines()]
    expressions += [{"source": source} for source in SYNTAX]
    for entry in expressions:
        entry.update(render(entry["source"], **VARIABLES))
    golden = {"jinja2": jinja2.__version__, "now_unix": int(NOW.timestamp()), "variables": VARIABLES,
              "inputs": CONVERSATIONS, "conversations": conversations, "expressions": expressions}
    (HERE / "goldens.json").write_text(json.dumps(golden, ensure_ascii=False, indent=0), encoding="utf-8")
    errors = sum("error" in entry for entry in conversations + expressions)
    print(f"{len(conversations)} conversations, {len(expressions)} expressions, {errors} of them errors")


if __name__ == "__main__":
    main()
