"""Forty conversations that differ in what chat templates look at: turns, system texts, tools, calls, thinking, parts."""

USER = {"role": "user", "content": "Hello"}
REPLY = {"role": "assistant", "content": "Hi there"}
SYSTEM = {"role": "system", "content": "Be brief."}
MORE = [{"role": "user", "content": "And then?"}, {"role": "assistant", "content": "Nothing.\nIn two lines."}]
UNICODE = [{"role": "user", "content": "  Grüße 你好 🦆 \u2028 \"quoted\" 'single' <b>&amp;</b>\t\n"},
           {"role": "assistant", "content": "\n Ärger \\n {{ braces }} {% tags %} </think> ｜ "}]

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place.\nNow.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "A town, as in \"Ulm\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}}, "required": ["place"]}}}
BOOK = {"type": "function", "function": {
    "name": "book", "description": "Books a table",
    "parameters": {"type": "object", "properties": {
        "when": {"type": "object", "description": "Time", "properties": {
            "day": {"type": "integer", "minimum": 1, "maximum": 31}, "hour": {"type": "number"}}, "required": ["day"]},
        "guests": {"type": "array", "items": {"type": "string"}, "description": "Names"},
        "any": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "vip": {"type": "boolean", "default": False}}, "required": ["when", "guests"]},
    "return": {"type": "string"}}}
EMPTY = {"type": "function", "function": {"name": "ping", "description": "", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, identity="call12345", kind="function"):
    return {"id": identity, "type": kind, "function": {"name": name, "arguments": arguments}}


def calling(calls, content="", **more):
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}


def result(text, identity="call12345", name="get_weather"):
    return {"role": "tool", "tool_call_id": identity, "name": name, "content": text}


ULM = call("get_weather", {"place": "Ulm", "unit": "celsius"})
MANY = call("book", {"when": {"day": 3, "hour": 19.5}, "guests": ["Ada", "Bo \"x\""], "any": None, "vip": True}, "call67890")
ASK = [{"role": "user", "content": "Weather in Ulm?"}]
WEATHER_TURNS = ASK + [calling([ULM]), result("{\"degrees\": 21}"), {"role": "assistant", "content": "21 degrees."}]


def thinking(content, thought, key="reasoning_content"):
    return {"role": "assistant", "content": content, key: thought}


def plain():
    yield [USER, REPLY], {}
    yield [SYSTEM, USER, REPLY], {}
    yield [USER, REPLY] + MORE, {}
    yield [SYSTEM, USER, REPLY] + MORE, {}
    yield [USER], {"add_generation_prompt": True}
    yield [SYSTEM, USER, REPLY, MORE[0]], {"add_generation_prompt": True}
    yield UNICODE, {}
    yield [SYSTEM] + UNICODE + MORE[:1], {"add_generation_prompt": True}
    yield [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}], {}
    yield [REPLY, USER], {}
    yield [USER, REPLY, SYSTEM, USER], {"add_generation_prompt": True}
    yield [{"role": "developer", "content": "Speak French."}, USER, REPLY], {}
    yield [USER, USER, REPLY], {}
    yield [SYSTEM, USER], {"add_generation_prompt": True, "enable_thinking": False}
    yield [SYSTEM, USER], {"add_generation_prompt": True, "enable_thinking": True, "thinking": True}
    yield [{"role": "system", "content": "/no_think Be brief."}, USER], {"add_generation_prompt": True}
    yield [{"role": "user", "content": [{"type": "text", "text": "In "}, {"type": "text", "text": "parts"}]}, REPLY], {}
    yield [{"role": "system", "content": [{"type": "text", "text": "Parts too"}]}, USER, {
        "role": "assistant", "content": [{"type": "text", "text": "Reply in parts"}]}], {}


def thoughts():
    yield [USER, thinking("Hi", "A greeting.")], {}
    yield [USER, thinking("Hi", "A greeting.\n"), MORE[0], thinking("Nothing.", "Hm.")], {}
    yield [USER, thinking("Hi", "A greeting."), MORE[0]], {"add_generation_prompt": True, "enable_thinking": True}
    yield [USER, thinking("Hi", "A greeting.", "thinking"), MORE[0]], {"add_generation_prompt": True}
    yield [USER, {"role": "assistant", "content": "<think>\nA greeting.\n</think>\n\nHi"}] + MORE, {}
    yield [USER, {"role": "assistant", "content": "<think>\nA greeting.\n</think>\n\nHi"}], {"enable_thinking": False}
    yield [SYSTEM, USER, thinking("", "Only a thought.")], {"preserve_thinking": True, "clear_thinking": False}


def tools():
    one, all_tools = {"tools": [WEATHER]}, {"tools": [WEATHER, BOOK, EMPTY]}
    yield [USER], {**one, "add_generation_prompt": True}
    yield [SYSTEM, USER, REPLY], all_tools
    yield WEATHER_TURNS, one
    yield [SYSTEM] + WEATHER_TURNS + MORE, all_tools
    yield WEATHER_TURNS[:3], {**all_tools, "add_generation_prompt": True}
    yield WEATHER_TURNS, {}
    yield ASK + [calling([call("get_weather", "{\"place\": \"Ulm\"}")]), result("21")], {**one, "add_generation_prompt": True}
    yield ASK + [calling([ULM, MANY], "Both at once."), result("21"), result("done", "call67890", "book"), REPLY], all_tools
    yield ASK + [calling([MANY], None), result("done", "call67890", "book")], {**all_tools, "add_generation_prompt": True}
    yield ASK + [calling([ULM], "", reasoning_content="I should look."), result("21"),
                 thinking("It is 21.", "Now I know.")], one
    yield ASK + [calling([ULM], "<think>\nI should look.\n</think>\n\n"), result("21"), REPLY] + MORE, one
    yield ASK + [calling([call("ping", {}, "call00001")]), result("pong", "call00001", "ping"), REPLY], all_tools
    yield ASK + [calling([ULM]), result([{"type": "text", "text": "21 in parts"}]), REPLY], one
    yield [SYSTEM] + ASK + [calling([ULM]), result("21"), calling([MANY]), result("ok ü", "call67890", "book"), REPLY,
                            USER], {**all_tools, "add_generation_prompt": True, "enable_thinking": True}
    yield WEATHER_TURNS + ASK + WEATHER_TURNS[1:], one


def conversations():
    out = []
    for messages, more in [*plain(), *thoughts(), *tools()]:
        variables = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": False, **more}
        # What transformers passes where nothing is given.
        variables.setdefault("tools", None)
        variables.setdefault("documents", None)
        out.append(variables)
    assert len(out) == 40, len(out)
    return out
