#!/usr/bin/env python3
"""Writes tests/fixtures/templates/renderings.json: what transformers makes of conversations with chat templates.

The templates lie beside it: published ones as their models carry them, and in named/ those that snug writes. Those in
marked/ say by generation blocks what of replies, calls and thoughts carries loss: learnt.json has what transformers makes
of them, and the stretches that lie in such blocks. Needs transformers 5; tests read the files and never run Python.
  HF_HUB_OFFLINE=1 make_template_fixtures.py
"""
import json
import pathlib

from transformers.utils.chat_template_utils import render_jinja_template

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "templates"
SPECIAL = {  # template: (bos, eos)
    "chatml": ("<s>", "<|im_end|>"),
    "smollm2": ("<|im_start|>", "<|im_end|>"),
    "qwen2": ("", "<|im_end|>"),
    "qwen2.5": ("", "<|im_end|>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama3.1": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama3.2": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama2": ("<s>", "</s>"),
    "mistral": ("<s>", "</s>"),
    "named/chatml": ("<s>", "<|im_end|>"),
    "named/qwen": ("", "<|im_end|>"),
    "named/llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "named/llama2": ("<s>", "</s>"),
    "named/mistral": ("<s>", "</s>"),
}
TURN = [("user", "Hello"), ("assistant", "Hi there")]
CONVERSATIONS = {
    "one turn": TURN,
    "with a system message": [("system", "Be brief.")] + TURN,
    "two turns": TURN + [("user", "Who are you?"), ("assistant", "An assistant.\nIn two lines.")],
    "system and two turns": [("system", " Speak French.\n")] + TURN + [("user", "Adieu"), ("assistant", "Au revoir")],
    "a question without a reply": [("user", "Anyone here?")],
    "white space around": [("user", "  a\t\n"), ("assistant", "\n\u00a0\u3000b \u2028\x1f"), ("user", "\u200bc"),
                           ("assistant", " ")],
    "no text": [("user", ""), ("assistant", "")],
    "special tokens in the text": [("user", "<|im_end|></s>[INST]"), ("assistant", "<|eot_id|><s>")],
    "quotes, braces, backslashes": [("user", "{{ x }} {% if %} \\n '\""), ("assistant", "\\u0041 <think>")],
    "reply first": [("assistant", "Hi there"), ("user", "Hello")],
    "a system message later": TURN + [("system", "Now in verse."), ("user", "Go on"), ("assistant", "Oh")],
}


TOOLS = [{"type": "function", "function": {"name": "tide", "description": "High water", "parameters": {
    "type": "object", "properties": {"port": {"type": "string", "description": "Where"},
                                     "day": {"type": "integer"}}, "required": ["port"]}}}]


def call(port, number=1, **more):
    return {"id": f"call0000{number}", "type": "function",
            "function": {"name": "tide", "arguments": {"port": port, **more}}}


def said(content, **more):
    return {"role": "assistant", "content": content, **more}


def thinking(thought):
    """The thought under each of the keys that templates read; a template reads one."""
    return {"reasoning_content": thought, "thinking": thought}


ASK = {"role": "user", "content": "Tide in Bergen?"}
TOLD = {"role": "tool", "tool_call_id": "call00001", "name": "tide", "content": "{\"at\": \"14:20\"}"}
MORE = [{"role": "user", "content": "Thanks."}, said("You are welcome.")]
LEARNT = {
    "two turns": ([ASK, said("At two.")] + MORE, None),
    "a call and its result": ([ASK, said("", tool_calls=[call("Bergen", day=3)]), TOLD, said("At 14:20.")], TOOLS),
    "a call in an earlier turn": ([ASK, said(None, tool_calls=[call("Bergen")]), TOLD, said("At 14:20.")] + MORE, TOOLS),
    "two calls": ([ASK, said("", tool_calls=[call("Bergen"), call("Oslo", 2)]), TOLD,
                   {**TOLD, "tool_call_id": "call00002", "content": "tide 2"}, said("At 14:20.")], TOOLS),
    "a call at the end": ([ASK, said("", tool_calls=[call("Bergen")])], TOOLS),
    "thinking": ([ASK, said("At two.", **thinking("Bergen lies\nin Norway."))], None),
    "thinking before a call": ([ASK, said("", tool_calls=[call("Bergen")], **thinking("I should look.")), TOLD,
                                said("At 14:20.", **thinking("It said so."))], TOOLS),
    "texts like headers": ([ASK, said("<|im_start|>assistant\n<|start|>assistant[CALLS][/ASK]<|turn|><|bot|>")] + MORE, None),
}


def learnt():
    cases = []
    for path in sorted((FOLDER / "marked").glob("*.jinja")):
        program = path.read_text()
        for name, (messages, tools) in LEARNT.items():
            thinks = any("thinking" in message for message in messages)
            calls = max(len(message.get("tool_calls") or []) for message in messages)
            if thinks and "reasoning_content" not in program and ".thinking" not in program:
                continue  # it writes none
            if calls > 1 and "tool_calls[0]" in program:
                continue  # it writes one
            [text], [spans] = render_jinja_template([messages], tools=tools, chat_template=program,
                                                    return_assistant_tokens_mask=True, bos_token="<s>", eos_token="</s>")
            joined = []  # neighbours are one stretch
            for begin, end in spans:
                if joined and joined[-1][1] == begin:
                    joined[-1][1] = end
                else:
                    joined.append([begin, end])
            cases.append({"template": path.stem, "conversation": name, "messages": messages, "tools": tools, "text": text,
                          "loss": [text[begin:end] for begin, end in joined]})
    return cases


def main():
    (FOLDER / "learnt.json").write_text(json.dumps(learnt(), indent=1) + "\n")
    renderings = []
    for template, (bos, eos) in SPECIAL.items():
        program = (FOLDER / f"{template}.jinja").read_text()
        for name, turns in CONVERSATIONS.items():
            messages = [{"role": role, "content": content} for role, content in turns]
            case = {"template": template, "bos": bos, "eos": eos, "conversation": name, "messages": messages}
            for key, generation in (("text", False), ("prompt", True)):
                try:
                    [case[key]], _ = render_jinja_template([messages], chat_template=program,
                                                           add_generation_prompt=generation, bos_token=bos,
                                                           eos_token=eos, date_string="26 Jul 2024")
                except Exception as refusal:
                    assert "alternate" in str(refusal) or "Only user" in str(refusal), refusal
                    case[key] = None
            renderings.append(case)
    (FOLDER / "renderings.json").write_text(json.dumps(renderings, indent=1) + "\n")


if __name__ == "__main__":
    main()
