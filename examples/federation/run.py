"""A federation on this machine: a SuperLink with TLS and node authentication, three SuperNodes, one study.

The script creates certificates, keys and policies in a folder, which it prints. It ends all processes that it starts.
Each site makes the draws by itself, and all sites must have the same. Sites add noise to their numbers, so that means
differ a little from one process with all rows. With `--exact`, sites add none, and draws must be equal.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import accord
from accord.federation import StudyDocument, audit
from accord.federation.flower.bundle import write_app
from accord.federation.keys import new_identity

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
# Loopback address.
HERE_ONLY = "127.0.0.1"


def make_certificates(folder: Path, host: str) -> None:
    """Write a certificate authority, and its certificate for the SuperLink at an address."""
    now = datetime.datetime.now(datetime.UTC)

    def certificate(name, key, issuer, signer, *extensions):
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder(subject_name=subject, issuer_name=issuer or subject, public_key=key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(signer, hashes.SHA256())

    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    own = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = certificate(
        "accord example", authority_key, None, authority_key,
        (x509.BasicConstraints(ca=True, path_length=0), True), (usage, True), (own, False),
    )  # fmt: skip
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(host))]
    server = certificate(
        "localhost", key, authority.subject, authority_key,
        (x509.SubjectAlternativeName(names), False), (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False),
    )  # fmt: skip
    (folder / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    write_private(folder / "server.key", key, serialization.PrivateFormat.PKCS8)


def write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def make_site(folder: Path, site: str, study: StudyDocument, peers: dict[str, str]) -> None:
    """Write a site's policy and node key, as its administrator does."""
    lines = [
        f'site = "{site}"', 'data = "rows.csv"', 'folder = "kept"', f'studies = ["{study.hash}"]', 'identity = "key"',
        'columns = ["age", "dose", "recovered"]', f"exact = {json.dumps(not study.coarse)}", "[peers]",
        *(f'{name} = "{key}"' for name, key in peers.items()),
    ]  # fmt: skip
    (folder / "site.toml").write_text("\n".join(lines) + "\n")
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(folder / "node", key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "node.pub").write_bytes(public + b"\n")


def free_port(host: str = HERE_ONLY) -> int:
    with socket.socket() as found:
        found.bind((host, 0))
        return found.getsockname()[1]


class Federation:
    """A SuperLink and one SuperNode for each site, with files in a folder. SuperNode commands begin with `there`."""

    def __init__(
        self, folder: Path, study: StudyDocument, tls: bool = True, host: str = HERE_ONLY, there: Sequence[str] = ()
    ) -> None:
        self.folder, self.study, self.tls, self.host, self.there = folder, study, tls, host, there
        self.port, self.processes = free_port(host), {}
        self.env = {
            **os.environ, "FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "TF_CPP_MIN_LOG_LEVEL": "3",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        (folder / "flwr").mkdir()
        make_certificates(folder, host)
        security = f'root-certificates = "{folder}/ca.crt"' if tls else "insecure = true"
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{host}:{self.port}"\n{security}\n'
        )
        peers = {}
        for site in study.sites:
            (folder / site).mkdir()
            shutil.copy(HERE.parent / "hospitals" / f"{site}.csv", folder / site / "rows.csv")
            peers[site] = new_identity(folder / site / "key")
        for site in study.sites:
            make_site(folder / site, site, study, peers)
        write_app(study, folder / "app", folder / "results")

    def start_superlink(self) -> None:
        secure = [
            f"--ssl-ca-certfile={self.folder}/ca.crt", f"--ssl-certfile={self.folder}/server.pem",
            f"--ssl-keyfile={self.folder}/server.key", "--enable-supernode-auth",
        ]  # fmt: skip
        self.start(
            "superlink", BIN / "flower-superlink", *(secure if self.tls else ["--insecure"]), f"--host={self.host}",
            f"--port={self.port}", f"--database={self.folder}/superlink.db",
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        ends = time.monotonic() + 60.0
        while socket.socket().connect_ex((self.host, self.port)) != 0:
            if time.monotonic() > ends or self.processes["superlink"].poll() is not None:
                raise RuntimeError(f"the SuperLink does not start, see {self.folder}/superlink.log")
            time.sleep(0.2)

    def register(self) -> None:
        if self.tls:
            for site in self.study.sites:
                self.flwr("supernode", "register", str(self.folder / site / "node.pub"), "here")

    def start_supernode(self, site: str) -> None:
        secure = [
            f"--root-certificates={self.folder}/ca.crt",
            f"--auth-supernode-private-key={self.folder}/{site}/node",
        ]
        self.start(
            site, *self.there, BIN / "flower-supernode", *(secure if self.tls else ["--insecure"]),
            f"--superlink={self.host}:{self.port}", f"--port={free_port()}",
            f'--node-config=policy="{self.folder}/{site}/site.toml"',
        )  # fmt: skip

    def start(self, name: str, *command: str | Path) -> None:
        log = open(self.folder / f"{name}.log", "ab")
        # a new process group, so that children end with it
        self.processes[name] = subprocess.Popen(
            [*map(str, command)], env=self.env, stdout=log, stderr=log, start_new_session=True
        )
        log.close()

    def flwr(self, *arguments: str) -> str:
        found = subprocess.run(
            [str(BIN / "flwr"), *arguments], env=self.env, capture_output=True, text=True, cwd=self.folder
        )
        if found.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)}:\n{found.stdout}\n{found.stderr}")
        return found.stdout

    def run(self) -> str:
        """Run the study to its end, and return the output of the server."""
        return self.flwr("run", str(self.folder / "app"), "here", "--stream")

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        process = self.processes.pop(name)
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            pass
        process.wait(timeout=30)

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)


def study_of(exact: bool) -> StudyDocument:
    """The study, with noise or exact."""
    study = StudyDocument.read(HERE / "study.toml")
    # [run] is the last section
    return StudyDocument(study.text + "coarse = false\n") if exact else study


def run_of(folder: Path, study: StudyDocument, site: str) -> Path:
    """The file of a site's own run."""
    return folder / site / "kept" / study.hash[:16] / "run.nc"


def drawn_here(folder: Path, study: StudyDocument) -> np.ndarray:
    """The draws of one process with all sites' rows."""
    files = [folder / site / "rows.csv" for site in study.sites]
    formula = "recovered ~ scale(age) + scale(dose)"
    here = accord.models.glm(accord.data.study(files, formula=formula), formula, "bernoulli")
    return accord.sample(here, accord.Network.star(3), draws=1000, progress=False).draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to keep everything; a temporary folder by default")
    parser.add_argument("--exact", action="store_true", help="without noise")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="accord-federation-"))
    folder.mkdir(parents=True, exist_ok=True)
    study = study_of(arguments.exact)
    print(f"study {study.hash}, in {folder}")
    with ExitStack() as stack:
        federation = Federation(folder, study)
        stack.callback(federation.close)
        federation.start_superlink()
        federation.register()
        for site in study.sites:
            federation.start_supernode(site)
        began = time.monotonic()
        output = federation.run()
        seconds = time.monotonic() - began
    (folder / "run.log").write_text(output)
    path = folder / "results" / "run.nc"
    if not path.is_file():
        raise SystemExit(f"no results in {path.parent}; see {folder}/run.log and the logs beside it")
    run = accord.Run.load(path)
    print(run.summary().to_string())
    here = drawn_here(folder, study)
    # the server and each site make the draws by themselves
    draws = [accord.Run.load(run_of(folder, study, site)).draws for site in study.sites]
    between = max(float(np.abs(one - run.draws).max()) for one in draws)
    apart = float(np.abs(run.draws - here).max())
    shift = float((np.abs(run.draws.mean(axis=(0, 1, 2)) - here.mean(axis=(0, 1, 2))) / here.std(axis=(0, 1, 2))).max())
    lines = audit.read(folder / study.sites[0] / "kept")
    print(f"\n{run.traffic.sums} sums in {seconds:.0f} s; largest difference between the draws of sites: {between:.1e}")
    print(f"compared with one process: draws differ by {apart:.1e}, means by {shift:.2g} standard deviations")
    print(next((line for line in output.splitlines() if " messages" in line), ""))
    print(f"\naudit of {study.sites[0]}, {len(lines)} lines:")
    for line in lines[:4] + lines[-3:]:
        print(json.dumps({key: value for key, value in line.items() if key not in ("study", "sent", "hash")}))
    if between > 1e-9:
        raise SystemExit("sites have different draws")
    if apart > 1e-9 if arguments.exact else shift > 0.3:
        raise SystemExit("the posterior of the federation differs from the posterior of one process")


if __name__ == "__main__":
    main()
