#!/usr/bin/env python3
"""Makes the packages of snug of what scripts/package.sh has built: a wheel, a tarball, a Debian package, their SBOM and
SHA256SUMS. All hold the same folder of programs with the shared libraries that these do not share with every system.

Refused are programs that need other libraries of a system than kSystem has, or newer symbols than those of the oldest
system that the wheel's name promises.
"""

import argparse
import base64
import csv
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import sbom

ROOT = Path(__file__).resolve().parent.parent

# What manylinux_2_35 lets a wheel use of a system, and up to which version.
SYSTEM = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2"}
NEWEST = {"GLIBC": (2, 35), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
PLATFORM = "manylinux_2_35_x86_64"
MOST_WHEEL_BYTES = {"processors": 20_000_000, "GPUs": 40_000_000}

# What is built, by its place in the build's folder and in a package's.
KERNELS, KERNELS_V4 = "libsnug_kernels.so", "glibc-hwcaps/x86-64-v4/libsnug_kernels.so"
MADE = ("snug", "libsnug_mpi.so", KERNELS, KERNELS_V4)

SUMMARY = "Fine-tunes large language models with memory known to the byte before it starts"


def fail(message: str) -> None:
    sys.exit(f"make_packages.py: {message}")


def output_of(*command: object) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


# ---- The folder of programs ------------------------------------------------------------------------------------------


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def needed_by(path: Path) -> list[str]:
    return re.findall(r"^\s+NEEDED\s+(\S+)$", output_of("objdump", "-p", path), re.MULTILINE)


def where_libraries_are(program: Path) -> dict[str, Path]:
    """Returns the files of all libraries that the dynamic linker would load here, by the names that ask for them."""
    loaded = re.findall(r"^\s+(\S+) => (/\S+) ", output_of("ldd", program), re.MULTILINE)
    return {name: Path(path) for name, path in loaded}


def make_program(folder: Path, build: Path) -> dict[str, Path]:
    """Puts the program into `folder` with its own libraries, and those that it carries, whose files here it returns."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / KERNELS_V4).parent.mkdir(parents=True)
    carried: dict[str, Path] = {}
    for name in MADE:
        subprocess.run(["strip", "--strip-unneeded", "-o", folder / name, build / name], check=True)
        carried |= where_libraries_are(build / name)
    carried = {name: path for name, path in carried.items() if name not in SYSTEM | set(MADE)}
    for name, path in carried.items():
        shutil.copyfile(path, folder / name)
    for path in files_of(folder):
        path.chmod(0o644 if ".so" in path.name else 0o755)
    return carried


def check_kernels(folder: Path) -> None:
    """Refuses kernels that ask the program for more than those that it was linked with, for which it has everything."""

    def asks(library: str) -> set[str]:  # symbols of the system have a version
        names = output_of("nm", "-D", "-u", "--format=just-symbols", folder / library).split()
        return {name for name in names if "@" not in name}

    if more := asks(KERNELS_V4) - asks(KERNELS):
        fail(f"{KERNELS_V4}: asks for {', '.join(sorted(more))}, for which {KERNELS} does not ask")


def check_needs(folder: Path) -> dict[str, tuple[int, ...]]:
    """Returns the newest version of each set of symbols that a system must have for the files of `folder`."""
    newest: dict[str, tuple[int, ...]] = {}
    for path in files_of(folder):
        for library in needed_by(path):
            if library not in SYSTEM and not (folder / library).is_file():
                fail(f"{path.name}: needs {library}, which is neither carried nor one of {', '.join(sorted(SYSTEM))}")
        for line in output_of("objdump", "-T", path).splitlines():
            found = re.search(r"\*UND\*.*\((GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)\)\s+(\S+)$", line)
            if not found:
                continue
            version = tuple(int(part) for part in found[2].split("."))
            if version > NEWEST[found[1]]:
                most = ".".join(map(str, NEWEST[found[1]]))
                fail(f"{path.name}: needs {found[3]} of {found[1]}_{found[2]}, expected {found[1]}_{most} or older")
            newest[found[1]] = max(newest.get(found[1], ()), version)
    return newest


# ---- Files of packages: names with their bytes and modes -------------------------------------------------------------


class Contents:
    """What a package holds: paths with bytes and modes, or the targets of symbolic links."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, int]] = {}
        self.links: dict[str, str] = {}

    def add(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        self.files[path] = (data.encode() if isinstance(data, str) else data, mode)

    def add_folder(self, path: str, folder: Path) -> None:
        for file in files_of(folder):
            if file.suffix != ".pyc":
                self.add(f"{path}/{file.relative_to(folder)}", file.read_bytes(), file.stat().st_mode & 0o777)

    def write_tree(self, root: Path) -> None:
        for path, (data, mode) in self.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
            (root / path).chmod(mode)
        for path, target in self.links.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).symlink_to(target)


def installed(program: Path, documents: dict[str, bytes]) -> Contents:
    """Returns what lies below a prefix such as /usr."""
    contents = Contents()
    contents.add_folder("lib/snug", program)
    contents.links["bin/snug"] = "../lib/snug/snug"
    for place, form in (("bash-completion/completions/snug", "bash"), ("man/man1/snug.1", "man")):
        contents.add(f"share/{place}", output_of(program / "snug", "schema", "--as", form))
    for name, data in documents.items():
        contents.add(f"share/doc/snug/{name}", data)
    return contents


def write_tarball(path: Path, root: str, contents: Contents, time: int) -> None:
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, time) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name in sorted([*contents.files, *contents.links]):
                entry = tarfile.TarInfo(f"{root}/{name}")
                entry.mtime = time
                if name in contents.links:
                    entry.type, entry.linkname = tarfile.SYMTYPE, contents.links[name]
                    tar.addfile(entry)
                    continue
                data, entry.mode = contents.files[name]
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def write_debian(path: Path, contents: Contents, control: str, scratch: Path, time: int) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    below_usr = Contents()
    below_usr.files = {f"usr/{name}": file for name, file in contents.files.items()}
    below_usr.links = {f"usr/{name}": target for name, target in contents.links.items()}
    kilobytes = sum(len(data) for data, _ in contents.files.values()) // 1024 + 1
    below_usr.add("usr/share/doc/snug/copyright", (ROOT / "LICENSE").read_bytes())
    below_usr.add("DEBIAN/control", control + f"Installed-Size: {kilobytes}\n")
    below_usr.write_tree(scratch)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time)}
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", scratch, path], check=True, env=environment,
                   stdout=subprocess.DEVNULL)


def write_wheel(path: Path, contents: Contents, info: str) -> None:
    """Writes a wheel, and of what it holds the RECORD that installers compare with."""
    rows = []
    for name, (data, _) in contents.files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append((name, f"sha256={digest}", len(data)))
    record = io.StringIO()
    csv.writer(record, lineterminator="\n").writerows([*rows, (f"{info}/RECORD", "", "")])
    contents.add(f"{info}/RECORD", record.getvalue())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, (data, mode) in contents.files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)


# ---- All of them -----------------------------------------------------------------------------------------------------


def cuda_requirements(program: Path) -> list[str]:
    """Returns the lines of METADATA for the libraries that a program with kernels for GPUs opens: those of the extra
    'cuda', whose places the program knows (src/cli/CMakeLists.txt)."""
    major = re.search(rb"libcublasLt\.so\.(\d+)", (program / "snug").read_bytes())
    if not major:
        return []
    cuda = int(major[1])
    wheels = (f"nvidia-cublas>={cuda},<{cuda + 1}", f"nvidia-nccl-cu{cuda}>=2.26")
    return ["Provides-Extra: cuda", *(f'Requires-Dist: {wheel}; extra == "cuda"' for wheel in wheels)]


def wheel_contents(version: str, program: Path, documents: dict[str, bytes], licence: str, info: str) -> Contents:
    licences = [name for name in documents if name == "LICENSE" or name.startswith("third_party/")]
    metadata = [
        "Metadata-Version: 2.4",
        "Name: snug",
        f"Version: {version}",
        f"Summary: {SUMMARY}",
        f"License-Expression: {licence}",
        *(f"License-File: {name}" for name in licences),
        "Requires-Python: >=3.9",
        *cuda_requirements(program),
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Typing :: Typed",
        "Description-Content-Type: text/markdown",
        "",
        documents["README.md"].decode(),
    ]
    tags = ["Wheel-Version: 1.0", "Generator: snug", "Root-Is-Purelib: false", f"Tag: py3-none-{PLATFORM}"]
    contents = Contents()
    contents.add_folder("snug", ROOT / "packages" / "python" / "snug")
    contents.add_folder("snug/program", program)
    contents.add(f"{info}/METADATA", "\n".join(metadata))
    contents.add(f"{info}/WHEEL", "\n".join(tags) + "\n")
    contents.add(f"{info}/entry_points.txt", "[console_scripts]\nsnug = snug.__main__:main\n")
    for name in licences:
        contents.add(f"{info}/licenses/{name}", documents[name])
    contents.add(f"{info}/sboms/snug.spdx.json", documents["snug.spdx.json"])
    return contents


def debian_control(version: str, needs: dict[str, tuple[int, ...]]) -> str:
    glibc = ".".join(map(str, needs["GLIBC"]))
    return f"""Package: snug
Version: {version}
Architecture: amd64
Maintainer: snug developers <snug@localhost>
Section: science
Priority: optional
Depends: libc6 (>= {glibc}), libstdc++6 (>= 12), libgcc-s1
Suggests: openmpi-bin
Description: {SUMMARY}
 snug plans a training job to the byte before it starts, then reserves exactly
 that and trains in it, on the GPUs and CPUs of one machine or several.
 .
 On GPUs it needs NVIDIA's driver, cuBLASLt and, for several GPUs, NCCL.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--scratch", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    given = parser.parse_args()
    time = int(output_of("git", "-C", ROOT, "log", "-1", "--format=%ct"))

    program = given.scratch / "program"
    carried = make_program(program, given.build)
    check_kernels(program)
    needs = check_needs(program)
    version = output_of(program / "snug", "--version").removeprefix("snug ").strip()
    parts = sbom.parts_of(given.build, set(carried.values()))
    documents = {name: (ROOT / name).read_bytes() for name in ("LICENSE", "README.md")}
    documents |= {f"third_party/{part.source}.txt": part.copyright_text() for part in parts}
    documents["snug.spdx.json"] = sbom.document(version, time, parts, program, carried).encode()

    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    info = f"snug-{version}.dist-info"
    wheel = given.out / f"snug-{version}-py3-none-{PLATFORM}.whl"
    write_wheel(wheel, wheel_contents(version, program, documents, sbom.licence_of(parts), info), info)
    most = MOST_WHEEL_BYTES["GPUs" if cuda_requirements(program) else "processors"]
    if wheel.stat().st_size > most:
        fail(f"{wheel.name} has {wheel.stat().st_size} bytes, expected {most} at most")
    contents = installed(program, documents)
    name = f"snug-{version}-linux-x86_64"
    write_tarball(given.out / f"{name}.tar.gz", name, contents, time)
    control = debian_control(version, needs)
    write_debian(given.out / f"snug_{version}_amd64.deb", contents, control, given.scratch / "debian", time)
    (given.out / f"snug-{version}.spdx.json").write_bytes(documents["snug.spdx.json"])
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(given.out.iterdir())]
    (given.out / "SHA256SUMS").write_text("".join(sums))
    for path in sorted(given.out.iterdir()):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    print("needs " + ", ".join(f"{name} {'.'.join(map(str, needs[name]))}" for name in sorted(needs)))


if __name__ == "__main__":
    main()
