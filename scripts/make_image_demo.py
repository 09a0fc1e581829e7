#!/usr/bin/env python3
"""Makes the data and the model of scripts/demo_images.sh: make_image_demo.py FOLDER_OF_ICONS OUT

An icon's name says what is on it: thirty of them, which look unlike each other, become questions with one drawing each
(train.jsonl), and the same texts with the drawing of another (others.jsonl). The model is a Qwen2-VL of two layers and a
tower of two, with the tokenizer of bytes that the tests have.
"""

import json
import pathlib
import shutil
import sys

NAMES = """camera-photo camera-video printer computer battery audio-card input-mouse input-keyboard input-gaming
media-floppy media-flash video-display drive-harddisk face-smile face-monkey face-angel face-devilish face-kiss
accessories-calculator internet-web-browser utilities-terminal emblem-favorite emblem-important folder user-home
user-trash weather-clear weather-snow weather-overcast weather-storm""".split()
FIXTURE = pathlib.Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "image_text" / "qwen2_vl"


def record(name, drawing):
    user = {"role": "user", "content": "<image>What is it?"}
    assistant = {"role": "assistant", "content": name.replace("-", " ") + "."}
    return json.dumps({"messages": [user, assistant], "images": [f"images/{drawing}.png"]}) + "\n"


def main():
    icons, out = map(pathlib.Path, sys.argv[1:])
    (out / "images").mkdir(exist_ok=True)
    (out / "model").mkdir(exist_ok=True)
    for name in NAMES:
        found = sorted(icons.glob(f"*/{name}.png"))
        if not found:
            sys.exit(f"{icons}: found no {name}.png")
        shutil.copyfile(found[0], out / "images" / f"{name}.png")
    (out / "names").write_text("".join(name + "\n" for name in NAMES))
    (out / "train.jsonl").write_text("".join(record(name, name) for name in NAMES))
    moved = NAMES[7:] + NAMES[:7]
    (out / "others.jsonl").write_text("".join(record(name, other) for name, other in zip(NAMES, moved)))
    for file in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        shutil.copyfile(FIXTURE / file, out / "model" / file)
    config = json.loads((FIXTURE / "config.json").read_text())
    config |= {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rope_theta": 1e4, "max_position_embeddings": 512, "tie_word_embeddings": True,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
    }  # fmt: skip
    config["vision_config"] |= {"depth": 2, "embed_dim": 64, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2,
                                "temporal_patch_size": 2}  # fmt: skip
    (out / "model" / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
