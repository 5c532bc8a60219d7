"""Lists what an import leaves behind in a home, with the reason."""

from __future__ import annotations

from typing import Final

from everhold.core.memory_files import PERSONA_FILE
from everhold.hermes.reader.files import PROVIDER_FILES, HermesProfile

_IMPORTED: Final = frozenset(
    {"state.db", "state.db-wal", "state.db-shm", "config.yaml", ".env", PERSONA_FILE, "MEMORY.md", "USER.md"}
    | {"profiles", "hindsight"}
    | set(PROVIDER_FILES.values())
)
_PROGRAM_DATA: Final = "made by hermes-agent for itself"
_REASONS: Final = {
    "hooks": "programs for hermes-agent, which everhold does not run",
    "plugins": "programs for hermes-agent; memory plug-ins can be used with `provider: hermes-plugin`",
    "auth.json": "logins of hermes-agent; put keys into .env",
}
_OWN_DATA: Final = frozenset(
    {
        "logs", "bin", "sandboxes", "image_cache", "audio_cache", "document_cache", "video_cache", "cache",
        "checkpoints", "gateway_state.json", "gateway.pid", "channel_directory.json", "processes.json",
        "models_dev_cache.json",
    }
)  # fmt: skip


def list_leftovers(profile: HermesProfile) -> list[str]:
    """Return `what: why` for everything in a profile that has no place here."""
    found: list[str] = []
    own: list[str] = []
    for name in profile.files.list_names():
        if name in _IMPORTED or name in profile.refused:
            continue
        if _is_own_data(name):
            own.append(name)
        elif profile.files.find_kind(name):  # what is refused is reported as such
            found += _explain(profile, name)
    if own:
        found.append(f"{', '.join(own)}: {_PROGRAM_DATA}")
    return [f"{profile.name}: {line}" for line in found]


def _is_own_data(name: str) -> bool:
    return name in _OWN_DATA or name.startswith(".") or name.endswith((".lock", ".pid", ".log"))


def _explain(profile: HermesProfile, name: str) -> list[str]:
    match name:
        case "skills":
            return []  # the import of skills names them
        case "cron":
            return _explain_jobs(profile)
        case "memories":
            return _explain_memories(profile)
        case "sessions":
            others = [one for one in profile.files.list_names(name) if one != "sessions.json"]
            profile.files.find_kind(f"{name}/sessions.json")
            return [f"sessions/: {len(others)} files; the conversations come from state.db"] if others else []
        case "platforms" | "pairing":
            return _explain_platforms(profile, name)
    if profile.files.has_folder(name) and not profile.files.list_names(name):
        return []  # an empty folder holds nothing that could be left behind
    if name in _REASONS:
        return [f"{name}: {_REASONS[name]}"]
    return [f"{name}: not known to the import"]


def _explain_jobs(profile: HermesProfile) -> list[str]:
    """Explain what is beside the jobs, which are imported."""
    others = [name for name in profile.files.list_names("cron") if name != "jobs.json"]
    return [f"cron/ ({', '.join(others[:10])}): {_PROGRAM_DATA}"] if others else []


def _explain_memories(profile: HermesProfile) -> list[str]:
    known = {*profile.memory_files, PERSONA_FILE}
    lines = []
    for name in profile.files.list_names("memories"):
        if name not in known and f"memories/{name}" not in profile.refused and not name.endswith(".lock"):
            reason = "an older copy" if ".bak" in name else "not a Markdown file"
            lines.append(f"memories/{name}: {reason}")
    return lines


def _explain_platforms(profile: HermesProfile, name: str) -> list[str]:
    inside = profile.files.list_names(name)
    if name == "platforms":
        return [f"platforms/{one}: {_PROGRAM_DATA}" for one in inside if one != "pairing"]
    return []
