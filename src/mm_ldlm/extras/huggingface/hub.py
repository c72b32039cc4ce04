"""Upload of an exported run to the Hugging Face hub."""

from pathlib import Path

from mm_ldlm.core import CheckpointError, foreign_code
from mm_ldlm.core.files import write_text
from mm_ldlm.training.checkpoints import folder


def upload(path: Path, name: str, *, private: bool) -> str:
    """Upload an exported run, whose digests are compared first; return the address of the commit.

    Raises:
        CheckpointError: it is not an exported run or is damaged, there are no credentials, or the hub refuses.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    folder.check(path)
    if get_token() is None:
        raise CheckpointError("expected credentials of the hub, found none. Run `hf auth login`, or set HF_TOKEN.")
    readme, api = path / "README.md", HfApi(library_name="mm-ldlm")
    if readme.is_file():  # its commands name the folder
        write_text(readme, readme.read_text(encoding="utf-8").replace(f'("{path.resolve().name}")', f'("{name}")'))
    with foreign_code(lambda reason: CheckpointError(
        f"{name}: the hub did not accept the upload ({reason}). Check the name, your rights there and the network, "
        "then give the same command again."
    ), OSError, ValueError, HfHubHTTPError):  # fmt: skip
        api.create_repo(name, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=name, folder_path=path, commit_message="Upload an exported run"))
