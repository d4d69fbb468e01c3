"""What `make release` does: all that the page of a release needs.

    python .ci/release.py dist BUCKET --archive stack=.aws-sam/build --archive site=build/site

Wheels, an SBOM, cloud-configs that pin a wheel, archives of folders (the built stack, which
`sam deploy` takes without a build; the pages), and the hashes of wheels and archives.

The same source gives the same wheels, byte for byte.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "worker" / "examples"
_WHEEL = re.compile(r"spotkeeper_worker-[0-9A-Za-z.]+-py3-none-any\.whl")
_HASH = re.compile(r"(?<=--hash=sha256:)[0-9a-f]{64}")
_BUCKET = re.compile(r"(?<=s3://)my-bucket(?=/)")


def main() -> int:
    """Build into a folder; answers the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("bucket", nargs="?", default="my-bucket", help="S3 bucket of the wheel")
    parser.add_argument("--archive", action="append", default=[], metavar="NAME=FOLDER")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for old in (p for end in ("whl", "zip", "cloud-config.yaml") for p in folder.glob(f"*.{end}")):
        old.unlink()
    for project in (ROOT, ROOT / "worker"):
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(build, cwd=project, check=True, stdout=subprocess.DEVNULL)
    wheels = sorted(folder.glob("*.whl"))
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels}
    version = wheels[0].name.split("-")[1]
    archives = {}
    for name, _, source in (option.partition("=") for option in options.archive):
        path = folder / f"spotkeeper-{version}-{name}.zip"
        _archive(Path(source), path)
        archives[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    lines = "".join(f"{digest}  {name}\n" for name, digest in (hashes | archives).items())
    (folder / "SHA256SUMS").write_text(lines)
    (folder / "sbom.cdx.json").write_text(json.dumps(_sbom(hashes), indent=2) + "\n")
    (wheel,) = (name for name in hashes if _WHEEL.fullmatch(name))
    for config in EXAMPLES.rglob("*.cloud-config.yaml"):
        text = _HASH.sub(hashes[wheel], _WHEEL.sub(wheel, config.read_text()))
        (folder / config.name).write_text(_BUCKET.sub(options.bucket, text))
    sys.stdout.write(lines)
    return 0


def _archive(source: Path, target: Path) -> None:
    """Write the files of a folder in order and without times: the same files, the same bytes."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            name = str(path.relative_to(source))
            if "__pycache__" not in name:
                info = zipfile.ZipInfo(name)
                info.external_attr, info.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
                archive.writestr(info, path.read_bytes())


def _sbom(hashes: "dict[str, str]") -> "dict[str, object]":
    """List in CycloneDX what is deployed: the pins of the functions' layer, and these wheels."""
    pins = (ROOT / "layers" / "dependencies" / "requirements.txt").read_text()
    components: list[dict[str, object]] = []
    for name, digest in hashes.items():
        project, version = name.replace("_", "-").split("-py3-")[0].rsplit("-", 1)
        made = _component(project, version)
        made["hashes"] = [{"alg": "SHA-256", "content": digest}]
        made["licenses"] = [{"license": {"id": "Apache-2.0"}}]
        components.append(made)
    components += [_component(*pin) for pin in re.findall(r"^([\w.-]+)==(\S+)", pins, re.M)]
    version = components[0]["version"]
    about = {"component": {"type": "application", "name": "spotkeeper", "version": version}}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": about,
        "components": components,
    }


def _component(name: str, version: str) -> "dict[str, object]":
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }


if __name__ == "__main__":
    sys.exit(main())
