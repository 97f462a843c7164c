"""Messages to exact token ids: chat templates, extension of what was sampled, tool calls.

Importing this package imports neither torch nor transformers; both are imported by the
functions that need a tokenizer.
"""

from stepwell.rendering.conversation import Conversation
from stepwell.rendering.messages import ImagePart, Message, Part, Role, TextPart, fold_system
from stepwell.rendering.probe import TemplateReport, probe_template
from stepwell.rendering.record import RecordedAction, RenderedPrompt, SampledTurn
from stepwell.rendering.refusal import Refusal, RestartKind
from stepwell.rendering.renderer import History, RenderCounts, Renderer
from stepwell.rendering.template import ChatTokenizer
from stepwell.rendering.tokenizer_loader import load_tokenizer
from stepwell.rendering.tool_calls import ParsedReply, ToolCallError, ToolFormat, parse_reply
from stepwell.rendering.vision import ImageFormat, load_image_format

__all__ = [
    "ChatTokenizer",
    "Conversation",
    "History",
    "ImageFormat",
    "ImagePart",
    "Message",
    "ParsedReply",
    "Part",
    "RecordedAction",
    "Refusal",
    "RenderCounts",
    "RenderedPrompt",
    "Renderer",
    "RestartKind",
    "Role",
    "SampledTurn",
    "TemplateReport",
    "TextPart",
    "ToolCallError",
    "ToolFormat",
    "fold_system",
    "load_image_format",
    "load_tokenizer",
    "parse_reply",
    "probe_template",
]
