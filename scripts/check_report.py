#!/usr/bin/env python3
"""Looks at a page of `snug report` with a headless Chromium (Debian's package chromium), which CI does not install.

    scripts/check_report.py report.html --out DIR

Takes pictures of it, light and dark, wide and narrow, into DIR, for a person to look at. Fails where the page's script
reports an error, where the page asks for anything on a network, where it is wider than a narrow window, or where the
arrow keys do not say a chart's values.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

# What a page is asked in a copy of itself: the arrow keys on every chart, how wide it is, what it loaded. (What its
# policy kept it from loading stands on the console.)
PROBE = """<script>
const said = [...document.querySelectorAll(".plot")].map((plot) => {
  plot.focus();
  for (const key of ["Home", "ArrowRight", "ArrowRight", "End"])
    plot.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  return document.activeElement === plot && plot.getAttribute("aria-valuetext");
});
const headings = [...document.querySelectorAll("h1,h2,h3")].map((heading) => Number(heading.tagName[1]));
const result = document.createElement("pre");
result.id = "probe";
result.textContent = JSON.stringify({
  said, headings, figures: document.querySelectorAll("figure").length,
  loaded: performance.getEntriesByType("resource").map((entry) => entry.name),
  wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
});
document.body.append(result);
</script></body>"""


def chromium(page, *flags):
    """Standard output and error of one look at a page."""
    with tempfile.TemporaryDirectory() as profile:
        command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   "--disable-background-networking", "--disable-component-update", "--no-first-run",
                   f"--user-data-dir={profile}", "--enable-logging=stderr", *flags, page.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def console_lines(log):
    return [line for line in log.splitlines() if ":CONSOLE" in line]


def probe(page, folder):
    copy = folder / "probe.html"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", PROBE), encoding="utf-8")
    dom, log = chromium(copy, "--window-size=500,900", "--dump-dom")
    found = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    return json.loads(re.sub("&lt;|&gt;|&amp;", "?", found.group(1))), log


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory for pictures")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    failures = []
    for scheme, flag in ("light", 1), ("dark", 0):
        for width, height in (1200, 4000), (500, 4000):
            picture = args.out / f"{args.page.stem}-{scheme}-{width}.png"
            _, log = chromium(args.page, f"--blink-settings=preferredColorScheme={flag}", f"--screenshot={picture}",
                              f"--window-size={width},{height}")
            failures += console_lines(log)
            print(picture)
    with tempfile.TemporaryDirectory() as folder:
        result, log = probe(args.page, pathlib.Path(folder))
    failures += console_lines(log)
    failures += [f"the page loads {url}" for url in result["loaded"] if not url.startswith("data:")]
    if result["wide"]:
        failures.append("the page is wider than a window of 500 pixels")
    if len(result["said"]) != result["figures"] or not all(re.match(r"step \d", said or "") for said in result["said"]):
        failures.append(f"arrow keys say {result['said']}, expected the values of {result['figures']} charts")
    if any(after > before + 1 for before, after in zip(result["headings"], result["headings"][1:])):
        failures.append(f"headings skip a level: {result['headings']}")
    print("\n".join(failures) or "check_report: ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
