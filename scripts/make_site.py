#!/usr/bin/python3
"""Makes a site of static pages of README.md and of all Markdown that it leads to, and checks every link on the way.

    make_site.py [OUT]     build/site unless told; fails, and names page and link, for one that leads nowhere

Pages need no network and no script. A link to a directory leads to a page that lists what is in it; files that are not
Markdown (pictures, the licence) are copied. Needs Debian's python3-markdown.
"""

import html
import pathlib
import re
import shutil
import sys
import urllib.parse

import markdown

ROOT = pathlib.Path(__file__).resolve().parent.parent
START = ROOT / "README.md"

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="{root}style.css">
</head>
<body>
<nav aria-label="Pages">
{nav}
</nav>
<main>
{body}
</main>
</body>
</html>
"""

STYLE = """:root { color-scheme: light dark; --line: #d5d9de; --soft: #f5f6f8; --link: #0b57a4; }
@media (prefers-color-scheme: dark) { :root { --line: #3a3f46; --soft: #22262b; --link: #8cbcf2; } }
body { margin: 0; display: flex; font: 16px/1.55 system-ui, sans-serif; }
nav { flex: 0 0 15rem; height: 100vh; position: sticky; top: 0; overflow: auto; box-sizing: border-box; padding: 1.5rem; }
nav a { display: block; padding: .15rem 0; }
nav a[aria-current] { font-weight: 600; color: inherit; }
main { flex: 1; min-width: 0; max-width: 56rem; padding: 1.5rem 2rem 4rem; }
a { color: var(--link); text-decoration: none; }
a:hover, a:focus { text-decoration: underline; }
code, pre { font: 14px/1.5 ui-monospace, monospace; }
pre { background: var(--soft); padding: .8rem 1rem; overflow: auto; }
.table { overflow: auto; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: left; vertical-align: top; }
img { max-width: 100%; }
@media (max-width: 60rem) { body { flex-direction: column-reverse; } nav { height: auto; position: static; } }
"""


def anchor_of(heading, separator="-"):
    """The id that a heading has where repositories show Markdown."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", separator)


class Site:
    def __init__(self, out):
        self.out, self.pages, self.wrong = out, {}, []  # pages: path -> (title, body, anchors), in the order of links

    def place_of(self, path):
        """The file that stands for a page, a directory or a file, below the site's root."""
        if path == START:
            return pathlib.PurePosixPath("index.html")
        inner = pathlib.PurePosixPath(path.relative_to(ROOT).as_posix())
        return inner / "index.html" if path.is_dir() else inner.with_suffix(".html") if path.suffix == ".md" else inner

    def link_between(self, page, path):
        up = "../" * (len(self.place_of(page).parts) - 1)
        return up + str(self.place_of(path))

    def text_of(self, path):
        if not path.is_dir():
            return path.read_text(encoding="utf-8")
        pages = "".join(f"- [{p.name}]({p.name})\n" for p in sorted(path.glob("*.md")))
        return f"# {path.relative_to(ROOT)}\n\n{pages}"

    def add(self, start):
        queue = [start]
        while queue:
            path = queue.pop(0)
            if path in self.pages:
                continue
            text = self.text_of(path)
            body = markdown.markdown(text, extensions=["tables", "fenced_code", "sane_lists", "toc"],
                                     extension_configs={"toc": {"slugify": anchor_of}})
            title = re.search(r"^# (.+)$", text, re.M)
            anchors = set(re.findall(r'\bid="([^"]+)"', body))
            self.pages[path] = (title.group(1).strip() if title else path.stem, body, anchors)
            for target, _ in self.targets(path, body):
                if target and (target.is_dir() or target.suffix == ".md"):
                    queue.append(target)

    def targets(self, page, body):
        """What links and pictures of a page lead to, as paths and anchors; None in place of a path that is not here."""
        folder = page if page.is_dir() else page.parent
        for link in re.findall(r'\b(?:href|src)="([^"]+)"', body):
            link = html.unescape(link)
            if urllib.parse.urlsplit(link).scheme or link.startswith("//"):
                continue
            name, _, anchor = link.partition("#")
            path = (folder / urllib.parse.unquote(name)).resolve() if name else page
            yield (path if path.exists() and path.is_relative_to(ROOT) else None), anchor

    def write(self):
        for page, (title, body, _) in self.pages.items():
            links = re.findall(r'\b(?:href|src)="([^"]+)"', body)
            local = [link for link in links if not (urllib.parse.urlsplit(link).scheme or link.startswith("//"))]
            for link, (path, anchor) in zip(local, list(self.targets(page, body))):
                if path is None or (anchor and (path not in self.pages or anchor not in self.pages[path][2])):
                    self.wrong.append(f"{page.relative_to(ROOT)}: {html.unescape(link)} leads nowhere")
                    continue
                if path not in self.pages:
                    copy = self.out / self.place_of(path)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, copy)
                there = (f"#{anchor}" if path == page and anchor else
                         self.link_between(page, path) + (f"#{anchor}" if anchor else ""))  # fmt: skip
                body = body.replace(f'="{link}"', f'="\0{html.escape(there)}"')
            body = body.replace('="\0', '="').replace("<table>", '<div class="table"><table>')
            body = body.replace("</table>", "</table></div>")
            place = self.out / self.place_of(page)
            place.parent.mkdir(parents=True, exist_ok=True)
            root = "../" * (len(self.place_of(page).parts) - 1)
            place.write_text(PAGE.format(title=html.escape(title), nav=self.nav(page), body=body, root=root), encoding="utf-8")
        (self.out / "style.css").write_text(STYLE)

    def nav(self, page):
        here = ' aria-current="page"'
        return "\n".join(f'<a href="{self.link_between(page, other)}"{here if other == page else ""}>{html.escape(title)}</a>'
                         for other, (title, _, _) in self.pages.items())  # fmt: skip


def main():
    out = pathlib.Path(sys.argv[1] if sys.argv[1:] else ROOT / "build/site").resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    site = Site(out)
    site.add(START)
    site.write()
    if site.wrong:
        sys.exit("\n".join(site.wrong))
    print(f"site: {len(site.pages)} pages in {out}")


if __name__ == "__main__":
    main()
