"""The names of spans and attributes: the semantic conventions of OpenTelemetry at one version, and our own.

The names for generative AI left the conventions after this version. Only this module changes when they settle.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.1"
SCOPE: Final = "everhold"

# -- of the conventions
OPERATION_NAME: Final = "gen_ai.operation.name"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
ERROR_TYPE: Final = "error.type"

INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

# -- of their successor: values that the present ones allow as custom ones
SEARCH_MEMORY: Final = "search_memory"
UPSERT_MEMORY: Final = "upsert_memory"

# -- our own
COMPRESSION: Final = "everhold.compression"
DELIVER: Final = "deliver"
OP: Final = "everhold.op"
OPERATION_TYPE: Final = "everhold.operation_type"
OUTCOME: Final = "everhold.outcome"
WAIT_SECONDS: Final = "everhold.wait_seconds"
COST_USD: Final = "everhold.cost_usd"
EFFECT: Final = "everhold.effect"
ITEMS: Final = "everhold.items"
PLATFORM: Final = "everhold.platform"
ACCOUNT: Final = "everhold.account"
DOUBTFUL: Final = "everhold.doubtful"
LAG_SECONDS: Final = "everhold.lag_seconds"
MEMORY: Final = "everhold.memory"
TRIGGER: Final = "everhold.trigger"
MESSAGES: Final = "everhold.messages"
TOKENS_BEFORE: Final = "everhold.tokens_before"
TOKENS_AFTER: Final = "everhold.tokens_after"
