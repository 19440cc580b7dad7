"""TLS between hosts, as the command line, a job file or the environment asks for it."""

import os

from polyrhythm.policies import parse_policy
from polyrhythm.runtime.launch.nodes import Node
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.tls.cover import check_cover, take_up
from polyrhythm.runtime.wire.tls.files import TlsFiles, check_files


def take_up_tls(config: JobConfig, node: Node) -> None:
    """Let all processes of this host have TLS, if it is asked for."""
    files = TlsFiles(config.tls_cert, config.tls_key, config.tls_ca)
    if node.count > 1:
        check_files(files)
    take_up(files, os.environ, node.count)
    if "policy" in config.given:
        check_cover(parse_policy(config.policy))
