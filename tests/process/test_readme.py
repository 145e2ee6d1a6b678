"""The README's commands, as a reader would type them, against a running agent."""

import re
import subprocess
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"
STRICT = """\
set -euo pipefail
curl() { command curl --fail-with-body --show-error "$@" || { echo "FAILED: curl $*"; exit 1; }; }
"""


def test_the_commands_of_the_readme_work(agent, gguf, tmp_path):
    """Blocks after `<!-- run -->` are run in order, in one shell, in the agent's folder."""
    blocks = re.findall(r"<!-- run -->\n```sh\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) > 8
    script = STRICT + "\n".join(blocks)
    script = script.replace("http://localhost:8001", agent.url).replace("/path/to/model.gguf", str(gguf))
    script = script.replace(
        '"threads": 4', '"threads": 1'
    )  # on a busy machine four would wait for each other
    (agent.folder / ".env").write_text(f"API_KEY={agent.key}\n")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=agent.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert '"healthy"' in done.stdout
    assert '"completion_tokens"' in done.stdout
    assert "ignored; did you mean" not in done.stdout, "an example holds a field that nobody knows"
