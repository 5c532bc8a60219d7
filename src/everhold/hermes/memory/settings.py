"""The section of a hermes-agent plug-in in config.yaml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from everhold.hermes.memory.host_pool import MAX_HOSTS
from everhold.infra.secret import SecretString
from everhold.memories.settings import MemorySection


class HermesSettings(MemorySection):
    path: str = Field(
        min_length=1,
        description="the plug-in's directory or file; or a name, of one in `plugins` of its home or of an entry point",
    )
    python: str = Field(default="", description="the interpreter it is installed in; by default our own")
    hermes_home: str = Field(
        default="", description="the owner's directory with its files; other people get their own, with its settings"
    )
    serves: Literal["checked", "owner", "everybody"] = Field(
        default="checked",
        description="whom it serves besides the owner: others if a test shows that it keeps people apart, nobody, or "
        "everybody without a test",
    )
    most_processes: int = Field(
        default=MAX_HOSTS, ge=1, le=64, description="how many of its processes run at once; each person has one"
    )
    environ: dict[str, str | SecretString] = Field(
        default_factory=dict, description="variables for its process; `NAME_env` names the variable that holds a secret"
    )
    environ_from: tuple[str, ...] = Field(default=(), description="variables to pass on from our own environment")
    sandbox: Literal["auto", "bubblewrap", "landlock", "none"] = Field(
        default="auto",
        description="what keeps the plug-in from our home; `none` trusts it with all secrets and conversations",
    )
    network: bool = Field(
        default=False, description="whether the plug-in may use the network, this machine's own ports included"
    )
    read_paths: tuple[str, ...] = Field(
        default=(), description="files and folders that it may read, besides its code, its home and the system"
    )
    write_paths: tuple[str, ...] = Field(
        default=(), description="files and folders that it may read and change, besides its home"
    )
    max_memory_bytes: int = Field(
        default=4_000_000_000, ge=64_000_000, description="the memory of one of its processes and all that it starts"
    )
    max_cpu_seconds: int = Field(
        default=600, ge=1, description="the processor time of one of its processes, within a quarter of an hour"
    )
    tools: tuple[str, ...] | None = Field(default=None, description="which of its tools may be used; by default all")
    most_tools: int = Field(default=16, ge=0, le=32, description="how many of its tools are offered at most")
    read_back: bool = Field(
        default=True, description="search it for what was sent, if it can be searched, because it returns no receipts"
    )
    deadline_seconds: float = Field(
        default=60.0, gt=0, le=600, description="after which a call is given up and its process is killed"
    )
