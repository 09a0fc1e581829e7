"""Finds which software of others went into a build of snug, and writes that down as an SPDX document.

What went in is what the compiler read (ninja's dependencies), what the linker read (its maps) and which shared
libraries a package carries; dpkg says whose these files are, or they lie in the CUDA toolkit.
"""

import hashlib
import json
import re
import subprocess
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

# Licences by Debian's source package. A source that is not here is refused, so that somebody looks at its licence.
LICENCES = {
    "cli11": "BSD-3-Clause",
    "fmtlib": "MIT",
    "gcc-12": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "glibc": "LGPL-2.1-or-later",
    "libjpeg-turbo": "IJG AND BSD-3-Clause AND Zlib",
    "libpng1.6": "libpng-2.0",
    "liburing": "LGPL-2.1-or-later OR MIT",
    "libwebp": "BSD-3-Clause",
    "libzstd": "BSD-3-Clause OR GPL-2.0-only",
    "linux": "GPL-2.0-only WITH Linux-syscall-note",
    "nlohmann-json3": "MIT",
    "ocl-icd": "BSD-2-Clause",
    "onednn": "Apache-2.0",
    "openmpi": "BSD-3-Clause-Open-MPI",
    "pcre2": "BSD-3-Clause",
    "snappy": "BSD-3-Clause",
    "utf8proc": "MIT AND Unicode-DFS-2015",
    "xxhash": "BSD-2-Clause",
    "yaml-cpp": "MIT",
    "zlib": "Zlib",
}

# Sources whose headers say what a system has: of theirs nothing is in a package, unless an archive was linked.
INTERFACES = {"glibc", "linux", "openmpi"}

# What of the CUDA toolkit may be passed on, by its licence's attachment A: archives that are linked.
CUDA, CUDA_LICENCE = "cuda-runtime", "LicenseRef-NVIDIA-CUDA-EULA"
CUDA_ARCHIVES = {"libcudart_static.a", "libcudadevrt.a"}
LICENCES[CUDA] = CUDA_LICENCE


@dataclass
class Part:
    """What a source package of Debian has in a package of snug."""

    source: str
    version: str
    package: str  # a binary package of it that was read
    relation: str  # CONTAINS: carried as a shared library; STATIC_LINK; BUILD_DEPENDENCY_OF: only read

    supplier = "Debian"

    def copyright_text(self) -> bytes:
        return (Path("/usr/share/doc") / self.package.split(":")[0] / "copyright").read_bytes()

    def locator(self) -> str:
        return f"pkg:deb/debian/{self.source}@{self.version}?arch=source"


class CudaPart(Part):
    """What the CUDA toolkit has there; its package is the toolkit's folder."""

    supplier = "NVIDIA"

    def copyright_text(self) -> bytes:
        toolkit = Path(self.package)
        for text in [*toolkit.glob("EULA.txt"), *toolkit.glob("dist-info/nvidia_cuda_runtime-*/licenses/License.txt")]:
            return text.read_bytes()
        raise SystemExit(f"sbom.py: {toolkit} has no licence, expected EULA.txt")

    def locator(self) -> str:
        return f"pkg:generic/{CUDA}@{self.version}"


def owners() -> dict[str, str]:
    """Returns the binary package of each file that dpkg has installed."""
    owner = {}
    for files in Path("/var/lib/dpkg/info").glob("*.list"):
        owner |= dict.fromkeys(files.read_text().splitlines(), files.stem)
    return owner


def files_read(build: Path) -> tuple[set[Path], set[Path]]:
    """Returns the headers that a build's compilers read, and the files that its linker read."""
    deps = subprocess.run(["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True, text=True).stdout
    headers = {Path(line.strip()) for line in deps.splitlines() if line.startswith("    /")}
    maps = "".join(path.read_text() for path in build.glob("*.map"))
    return headers, {build / name for name in re.findall(r"^LOAD (\S+)$", maps, re.MULTILINE)}


def cuda_part(linked: set[Path]) -> list[Part]:
    """Returns what of the CUDA toolkit was linked; its other archives may not be passed on."""
    archives = {path.resolve() for path in linked if path.name.startswith("libcu") and path.suffix == ".a"}
    if not archives:
        return []
    if more := {path.name for path in archives} - CUDA_ARCHIVES:
        raise SystemExit(f"sbom.py: {', '.join(sorted(more))} went in, expected of CUDA only {', '.join(CUDA_ARCHIVES)}")
    toolkit = next(folder for folder in sorted(archives)[0].parents if (folder / "bin" / "nvcc").is_file())
    said = subprocess.run([toolkit / "bin" / "nvcc", "--version"], check=True, capture_output=True, text=True).stdout
    return [CudaPart(CUDA, re.search(r"V([0-9.]+)", said)[1], str(toolkit), "STATIC_LINK")]


def parts_of(build: Path, carried: set[Path]) -> list[Part]:
    """Returns what of others went into a build that carries these libraries: of Debian by source package."""
    owner = owners()

    def packages(paths: set[Path]) -> set[str]:
        found = set()
        for path in {str(path.resolve()) for path in paths}:
            found |= {owner[name] for name in (path, path.removeprefix("/usr")) if name in owner}
        return found

    headers, linked = files_read(build)
    of_headers = packages(headers)
    of_archives = packages({path for path in linked if path.suffix == ".a"})
    of_carried = packages(carried)
    parts: dict[str, Part] = {}
    for package in sorted(of_headers | of_archives | of_carried):
        query = ["dpkg-query", "-W", "-f", "${source:Package}\t${source:Version}", package]
        source, version = subprocess.run(query, check=True, capture_output=True, text=True).stdout.split("\t")
        if source not in LICENCES:
            raise SystemExit(f"sbom.py: {package} of source {source} went in: look at its licence, and add it here")
        relation = "STATIC_LINK" if package in of_archives or source not in INTERFACES else "BUILD_DEPENDENCY_OF"
        if package in of_carried:
            relation = "CONTAINS"
        strength = ["BUILD_DEPENDENCY_OF", "STATIC_LINK", "CONTAINS"]
        known = parts.get(source)
        if not known or strength.index(relation) > strength.index(known.relation):
            parts[source] = Part(source, version, package, relation)
    return [*parts.values(), *cuda_part(linked)]


def licence_of(parts: list[Part]) -> str:
    """Returns the licences of a package with these parts as one SPDX expression."""
    licences = {LICENCES[part.source] for part in parts if part.relation != "BUILD_DEPENDENCY_OF"} - {"Apache-2.0"}
    return " AND ".join(["Apache-2.0", *(f"({name})" if " " in name else name for name in sorted(licences))])


def described_files(program: Path, parts: list[Part], carried: dict[str, Path]) -> list[dict]:
    owner, sources = owners(), {part.package: part.source for part in parts}
    files = []
    for path in sorted(path for path in program.rglob("*") if path.is_file()):
        name, data = str(path.relative_to(program)), path.read_bytes()
        whose = LICENCES[sources[owner_of(carried[path.name], owner)]] if path.name in carried else "Apache-2.0"
        files.append({
            "SPDXID": "SPDXRef-file-" + re.sub(r"[^A-Za-z0-9.-]", "-", name), "fileName": f"./{name}",
            "licenseConcluded": whose, "licenseInfoInFiles": ["NOASSERTION"], "copyrightText": "NOASSERTION",
            "checksums": [{"algorithm": kind, "checksumValue": hashlib.new(kind.lower(), data).hexdigest()}
                          for kind in ("SHA1", "SHA256")],
        })  # fmt: skip
    return files


def described(name: str, version: str, licence: str, **more: object) -> dict:
    return {
        "SPDXID": f"SPDXRef-{name}", "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
        "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION", **more,
    }  # fmt: skip


def document(version: str, time: int, parts: list[Part], program: Path, carried: dict[str, Path]) -> str:
    """Returns the SPDX document of the folder `program`; `time` is when its sources were committed."""
    files = described_files(program, parts, carried)
    sums = "".join(sorted(file["checksums"][0]["checksumValue"] for file in files))
    code = hashlib.sha1(sums.encode()).hexdigest()
    packages = [described("snug", version, "Apache-2.0", primaryPackagePurpose="APPLICATION", filesAnalyzed=True,
                          packageVerificationCode={"packageVerificationCodeValue": code})]  # fmt: skip
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-snug")]
    for part in parts:
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                     "referenceLocator": part.locator()}  # fmt: skip
        packages.append(described(part.source, part.version, LICENCES[part.source], filesAnalyzed=False,
                                  supplier=f"Organization: {part.supplier}", externalRefs=[reference]))  # fmt: skip
        ends = ("SPDXRef-snug", f"SPDXRef-{part.source}")
        if part.relation == "BUILD_DEPENDENCY_OF":
            ends = ends[::-1]
        relations.append((ends[0], part.relation, ends[1]))
    relations += [("SPDXRef-snug", "CONTAINS", file["SPDXID"]) for file in files]
    found = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"snug-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/snug-{version}-{uuid.uuid5(uuid.NAMESPACE_OID, code)}",
        "creationInfo": {"created": datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Tool: snug-sbom"]},
        "packages": packages, "files": files,
        "hasExtractedLicensingInfos": [
            {"licenseId": CUDA_LICENCE, "extractedText": part.copyright_text().decode(errors="replace")}
            for part in parts if isinstance(part, CudaPart)],
        "relationships": [{"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
                          for one, kind, other in relations],
    }  # fmt: skip
    return json.dumps(found, indent=1) + "\n"


def owner_of(path: Path, owner: dict[str, str]) -> str:
    real = str(path.resolve())
    return owner.get(real) or owner[real.removeprefix("/usr")]
