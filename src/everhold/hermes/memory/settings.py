"""What a plug-in's section in config.yaml may say."""

from __future__ import annotations

from pydantic import Field

from everhold.infra.secret import SecretString
from everhold.memories.settings import MemorySection


class HermesSettings(MemorySection):
    path: str = Field(
        min_length=1,
        description="the plug-in's directory or file; or a name, of one in `plugins` in its home or of an entry point",
    )
    python: str = Field(default="", description="the interpreter it is installed in; our own if left out")
    hermes_home: str = Field(default="", description="where it finds its own files; a place in the home if left out")
    environ: dict[str, str | SecretString] = Field(
        default_factory=dict, description="variables it is started with; `NAME_env` names the one that holds a secret"
    )
    environ_from: tuple[str, ...] = Field(default=(), description="variables passed on from our own environment")
    tools: tuple[str, ...] | None = Field(default=None, description="which of its tools may be used; all if left out")
    most_tools: int = Field(default=16, ge=0, le=32, description="how many of its tools are offered at most")
    read_back: bool = Field(
        default=True, description="search it for what it was told, where it can be searched: it gives no receipt"
    )
    deadline_seconds: float = Field(
        default=60.0, gt=0, le=600, description="after which a call is given up, and its process ended"
    )
