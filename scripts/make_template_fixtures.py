#!/usr/bin/env python3
"""Writes tests/fixtures/templates/renderings.json: what transformers makes of conversations with chat templates.

The templates lie beside it: published ones as their models carry them, and in named/ those that snug writes. Needs transformers 5; tests read the file and never run Python.
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


def main():
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
