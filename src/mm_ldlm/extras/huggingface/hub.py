"""Upload of an exported run to the Hugging Face hub."""

from pathlib import Path

from mm_ldlm.core import CheckpointError, foreign_code
from mm_ldlm.core.files import write_text
from mm_ldlm.training.checkpoints import folder


def upload(path: Path, name: str, *, private: bool) -> str:
    """Upload an exported run, whose digests are compared first; return the address of the commit.

    Raises:
        CheckpointError: it is not an exported run or is damaged, or the hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    folder.check(path)
    readme, api = path / "README.md", HfApi(library_name="mm-ldlm")
    if readme.is_file():  # its commands name the folder
        write_text(readme, readme.read_text(encoding="utf-8").replace(f'("{path.resolve().name}")', f'("{name}")'))
    with foreign_code(lambda reason: CheckpointError(
        f"{name}: the hub did not accept the upload ({reason}). Check your credentials (`hf auth login`, or HF_TOKEN), "
        "the name, your rights there and the network, then give the same command again."
    ), OSError, ValueError, HfHubHTTPError):  # fmt: skip
        api.create_repo(name, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=name, folder_path=path, commit_message="Upload an exported run"))
