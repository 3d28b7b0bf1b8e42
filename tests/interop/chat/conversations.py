"""Conversations for chat templates: kept ones of every kind, and random ones."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City, \"quoted\" & <b>"},
                "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
                "days": {"type": "array", "items": {"type": "integer"}, "nullable": True},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
                "any": {"oneOf": [{"type": "string"}, {"type": "number", "default": 1.5}]},
                "two": {"type": ["string", "null"]},
            },
            "required": ["place"],
        },
        "return": {"type": "string", "description": "text"},
        "response": {"type": "object", "description": "an answer"},
    },
}
EMPTY_TOOL = {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}
FLAT_TOOL = {"name": "flat", "description": "No function around it", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}}}


def m(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


SYSTEM, USER, ANSWER = m("system", "You are terse."), m("user", "Hi"), m("assistant", "Hello")
CALL = m("assistant", "", tool_calls=[call("get_weather", {"place": "Rōma", "days": [1, 2], "unit": None, "n": 1.0, "ok": True}, id="call_0_abc")])
RESULT = m("tool", "22 °C", name="get_weather", tool_call_id="call_0_abc")
WIDE = "Zażółć gęślą jaźń, 漢字 😀 \u200d\u2028 ẞß İ\u0301 end"

CONVERSATIONS = [{"messages": messages} for messages in [
    [], [USER], [SYSTEM], [ANSWER], [USER, ANSWER], [SYSTEM, USER, ANSWER],
    [USER, ANSWER, USER], [SYSTEM, USER, ANSWER, USER, ANSWER, m("user", "Bye"), m("assistant", "Bye!")],
    [USER, USER], [ANSWER, USER], [USER, ANSWER, ANSWER], [USER, SYSTEM], [SYSTEM, SYSTEM, USER], [SYSTEM, ANSWER],
    [m("user", "")], [m("user", ""), m("assistant", "")], [m("user", "  spaces \n\n"), m("assistant", "\n x \t")],
    [m("user", WIDE), m("assistant", WIDE)], [m("system", WIDE), m("user", "\u00a0x\u3000"), m("assistant", "é" * 300)],
    [m("user", "{{ evil }} {% x %} {# c #}"), m("assistant", "<|im_end|></s>")],
    [m("developer", "be nice"), USER, ANSWER], [m("other", "x"), USER], [m("User", "x"), m("Assistant", "y")],
    [m("chatbot", "x")], [m("ipython", "x")], [m("function", "{\"a\": 1}", name="f")], [m("", "x")],
    [USER, m("assistant", None)], [USER, m("assistant", "x", name="bob")], [m("user", None)], [m("system", None), USER],
    [{"role": "user"}], [{"content": "x"}], [{}], [USER, {"role": "assistant"}],
    [USER, m("assistant", "<think>\nhm\n</think>\n\nHello")], [USER, m("assistant", "hm</think>Hello")],
    [USER, m("assistant", "<think>a</think>b"), USER, m("assistant", "<think>c</think>d")],
    [USER, m("assistant", "Hello", reasoning_content="I think.")],
    [USER, m("assistant", "Hello", reasoning_content="")], [USER, m("assistant", "Hello", thinking="T", reasoning="R")],
    [USER, m("assistant", "Hello", reasoning_content="one"), USER, m("assistant", "x", reasoning_content="two")],
    [USER, m("assistant", "", thinking="only")],
    [USER, CALL], [USER, CALL, RESULT], [USER, CALL, RESULT, ANSWER], [SYSTEM, USER, CALL, RESULT, ANSWER, USER, ANSWER],
    [USER, m("assistant", "calling", tool_calls=[call("get_weather", {"place": "Paris"}), call("now", {})]), RESULT, m("tool", "{\"t\": 1}"), ANSWER],
    [USER, m("assistant", None, tool_calls=[call("now", {})]), m("tool", "12:00"), ANSWER],
    [USER, m("assistant", None, tool_calls=[call("now", "{\"a\": 1}")]), m("tool", "12:00"), ANSWER],
    [USER, m("assistant", "x", tool_calls=[])], [USER, m("assistant", "x", tool_calls=None)],
    [USER, m("assistant", "x", tool_calls=[{"name": "flat", "arguments": {"a": [1, {"b": None}]}}]), m("tool", "ok", name="flat"), ANSWER],
    [USER, m("assistant", "x", tool_calls=[call("f", {"code": "print('<a&b>')\n", "f": 1e-7, "big": 123456789012, "neg": -0.0})])],
    [USER, m("assistant", "x", tool_calls="none")], [USER, m("assistant", "x", tool_calls=[1])], [USER, m("assistant", "x", tool_calls=[{}])],
    [m("tool", "alone")], [USER, RESULT], [USER, CALL, RESULT, RESULT], [USER, CALL, USER], [RESULT, CALL],
    [USER, m("assistant", "", tool_responses=[{"name": "f", "response": {"a": [1, "b"], "c": None}}])],
    [m("user", [{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}]), m("assistant", [{"type": "text", "text": "answer"}])],
    [m("user", [{"type": "image"}, {"type": "text", "text": "what?"}]), m("assistant", [{"type": "text", "text": "a cat"}])],
    [m("user", [{"type": "image_url", "image_url": "x"}, {"type": "video"}, {"type": "audio"}, {"type": "text", "text": "t"}])],
    [m("system", [{"type": "text", "text": "sys"}]), m("user", [{"type": "text", "text": "u"}]), m("assistant", [{"type": "text", "text": "a"}])],
    [m("user", [])], [m("user", ["plain"])], [m("user", [{"text": "no type"}])], [m("user", {"type": "text", "text": "dict"})],
    [m("user", 5), m("assistant", 2.5)], [m("user", True), m("assistant", False)], [m(1, "x")], [m(None, "x")], [m(["user"], "x")],
    ["text"], [1], [None], [[USER]],
    [USER, m("tool", [{"type": "text", "text": "22"}]), ANSWER], [USER, CALL, m("tool", {"t": 22, "ok": True}), ANSWER],
    [USER, m("assistant", "x", content_type="code", recipient="all", channel="final", end_turn=True)],
    [m("user", "x " * 2000), m("assistant", "y\n" * 2000)],
    [USER, ANSWER] * 20,
]]
CONVERSATIONS += [{"messages": c["messages"], "tools": tools}
                  for c in (CONVERSATIONS[1], CONVERSATIONS[5], {"messages": [SYSTEM, USER, CALL, RESULT, ANSWER]}, CONVERSATIONS[0])
                  for tools in ([WEATHER], [WEATHER, EMPTY_TOOL], [FLAT_TOOL], [], "none", [1], [{}], [{"type": "function", "function": {"name": "code_interpreter"}}])]
CONVERSATIONS += [
    {"messages": [SYSTEM, USER, ANSWER], "enable_thinking": flag} for flag in (True, False, None, "yes")
] + [
    {"messages": [USER, ANSWER], "documents": [{"title": "T", "text": "body"}]},
    {"messages": [USER, ANSWER], "tools": [WEATHER], "builtin_tools": ["browser", "python"], "reasoning_effort": "high", "model_identity": "You are x."},
    {"messages": [USER, ANSWER], "custom_tools": [WEATHER], "tools_in_user_message": False, "date_string": "1 Jan"},
    {"messages": [SYSTEM, USER], "preserve_thinking": True, "add_vision_id": True, "keep_past_thinking": True},
    {"messages": [USER, ANSWER], "bos_token": None}, {"messages": None}, {"messages": "text"}, {"messages": {"a": 1}}, {"messages": 5},
]

WORDS = ["", "Hi", " hello ", "\n", "x\ny", WIDE, "<think>a</think>", "</think>", "a</think>b", "<tool_response>", "{}", "[1]", "'", '"', "user", "text",
         "<|channel>a<channel|>b", "get_weather", "assistant", "\\n", "é", "1", "0"]


def random_value(rng, depth=0):
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 3:
        return rng.choice(WORDS)
    if kind == 3:
        return rng.choice([0, 1, -1, 7, 10**12])
    if kind == 4:
        return rng.choice([0.5, 1e20, -2.0, 1e-9, 3.25])
    if kind == 5:
        return rng.choice([None, True, False])
    if kind == 6:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["a", "B", "type", "text", "items", "name", "é", "properties", "description", "required", "enum"]): random_value(rng, depth + 1)
            for _ in range(rng.randrange(4))}


def random_message(rng):
    content = rng.choice(WORDS) if rng.random() < 0.7 else random_value(rng)
    if rng.random() < 0.15:
        content = [{"type": rng.choice(["text", "image", "video", "audio"]), "text": rng.choice(WORDS)} for _ in range(rng.randrange(3))]
    message = m(rng.choice(["system", "user", "user", "assistant", "assistant", "tool", "developer"]), content)
    if rng.random() < 0.3:
        message["tool_calls"] = [call(rng.choice(WORDS), {rng.choice(["a", "b", "c d"]): random_value(rng) for _ in range(rng.randrange(3))},
                                      id=rng.choice(WORDS)) for _ in range(rng.randrange(1, 3))]
    for key in ("reasoning_content", "reasoning", "thinking", "name", "tool_call_id"):
        if rng.random() < 0.15:
            message[key] = rng.choice(WORDS + [None])
    if rng.random() < 0.05:
        message.pop(rng.choice(list(message)))
    if rng.random() < 0.05:
        message[rng.choice(["role", "content", "tool_calls", "items"])] = random_value(rng)
    return message


def random_conversation(rng):
    if rng.random() < 0.5:  # what training data looks like
        messages = [m("system", rng.choice(WORDS))] if rng.random() < 0.5 else []
        for _ in range(rng.randrange(1, 5)):
            messages += [m("user", rng.choice(WORDS)), m("assistant", rng.choice(WORDS))]
            if rng.random() < 0.3:
                messages[-1]["reasoning_content"] = rng.choice(WORDS)
            if rng.random() < 0.3:
                messages[-1]["tool_calls"] = [call("f", {"a": random_value(rng)}, id="call_1_x")]
                messages += [m("tool", rng.choice(WORDS), name="f", tool_call_id="call_1_x"), m("assistant", rng.choice(WORDS))]
    else:
        messages = [random_message(rng) for _ in range(rng.randrange(6))]
    case = {"messages": messages}
    if rng.random() < 0.3:
        case["tools"] = [WEATHER] if rng.random() < 0.5 else [{"type": "function", "function": {
            "name": rng.choice(WORDS), "description": rng.choice(WORDS),
            "parameters": {"type": "object", "properties": {rng.choice(["a", "B", "c"]): random_value(rng) for _ in range(rng.randrange(3))}}}}]
    for key in ("enable_thinking", "preserve_thinking", "add_vision_id"):
        if rng.random() < 0.2:
            case[key] = rng.choice([True, False])
    return case
