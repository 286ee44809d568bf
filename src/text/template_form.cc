// Sources, besides the Jinja texts that KnownTemplates() names: the model cards of Llama 3, Qwen2.5 and Mistral 7B
// Instruct; and DeepSpeed-Chat's data sets for "Human: … Assistant:".
#include "text/template_form.h"

#include <algorithm>
#include <array>

namespace tdock::text {
namespace {

using PieceKind = ChatTemplate::Piece::Kind;

constexpr std::array kImStart = {FramePart{PieceKind::kSpecial, "<|im_start|>"}};
constexpr std::array kImEnd = {FramePart{PieceKind::kSpecial, "<|im_end|>"}};
constexpr std::array kNewline = {FramePart{PieceKind::kText, "\n"}};
constexpr std::array kHeader = {FramePart{PieceKind::kSpecial, "<|start_header_id|>"}};
constexpr std::array kHeaderEnd = {FramePart{PieceKind::kSpecial, "<|end_header_id|>"},
                                   FramePart{PieceKind::kText, "\n\n"}};
constexpr std::array kEot = {FramePart{PieceKind::kSpecial, "<|eot_id|>"}};
constexpr std::array kEos = {FramePart{PieceKind::kEos}};
constexpr std::array kInst = {FramePart{PieceKind::kText, " [INST] "}};
constexpr std::array kInstEnd = {FramePart{PieceKind::kText, " [/INST]"}};
constexpr std::array kInstToken = {FramePart{PieceKind::kSpecial, "[INST]"}, FramePart{PieceKind::kText, " "}};
constexpr std::array kInstEndToken = {FramePart{PieceKind::kSpecial, "[/INST]"}};
constexpr std::array kHuman = {FramePart{PieceKind::kText, " Human: "}};
constexpr std::array kAssistant = {FramePart{PieceKind::kText, " Assistant:"}};

constexpr TemplateForm::Frame kChatmlFrame = {
    .open = kImStart, .role_after_open = true, .header_end = kNewline, .close = kImEnd, .after = kNewline};
constexpr TemplateForm::Frame kLlamaFrame = {
    .open = kHeader, .role_after_open = true, .header_end = kHeaderEnd, .close = kEot};

constexpr TemplateForm kForms[] = {
    {.name = "chatml",
     .user = kChatmlFrame,
     .assistant = kChatmlFrame,
     .names_developer = true,
     .tools = ToolPlace::kOwnTurn},
    {.name = "human_assistant",
     .user = {.open = kHuman, .close = kAssistant},
     .assistant = {.close = kEos},
     .reply_begins = " ",
     .user_asks = true,
     .must_alternate = true,
     .system = SystemPlace::kNowhere},
    {.name = "llama3",
     .begins_with_bos = true,
     .user = kLlamaFrame,
     .assistant = kLlamaFrame,
     .names_developer = true,
     .tools = ToolPlace::kOwnTurn,
     .strips_prompts = true,
     .strips_replies = true},
    {.name = "llama3.1",
     .begins_with_bos = true,
     .user = kLlamaFrame,
     .assistant = kLlamaFrame,
     .names_developer = true,
     .tools = ToolPlace::kIpython,
     .adds_system = true,
     .system_prefix = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
     .strips_prompts = true,
     .strips_replies = true},
    {.name = "mistral",
     .begins_with_bos = true,
     .user = {.open = kInst, .close = kInstEnd},
     .assistant = {.close = kEos},
     .reply_begins = " ",
     .user_asks = true,
     .must_alternate = true,
     .system = SystemPlace::kFirstUser},
    {.name = "mistral_v3",
     .begins_with_bos = true,
     .user = {.open = kInstToken, .close = kInstEndToken},
     .assistant = {.close = kEos},
     .reply_begins = " ",
     .user_asks = true,
     .must_alternate = true,
     .system = SystemPlace::kLastUser,
     .strips_replies = true},
    {.name = "qwen",
     .user = kChatmlFrame,
     .assistant = kChatmlFrame,
     .tools = ToolPlace::kUserTurn,
     .adds_system = true,
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
};

// tests/oracle/test_conversations.py renders them all, and tests that they are recognised.
constexpr KnownTemplate kKnown[] = {
    // the next one without its first statement, and with \n for its line ends
    {{.high = 0x577a7fce73f72e1e, .low = 0xe2be9fd6966bb5eb}, "chatml"},
    // axolotl 0.19.0: chatml.jinja
    {{.high = 0xa344e8c84fb0282d, .low = 0xda206a9e46a4ac01}, "chatml"},
    // tests/oracle/human_assistant.jinja
    {{.high = 0x78361303554a2944, .low = 0x0808190b010835f0}, "human_assistant"},
    // TRL 1.16.0: llama3_1.jinja
    {{.high = 0x9ddcd6cd71f96dd7, .low = 0x6ca7779b7730196a}, "llama3.1"},
    // TRL: llama3.jinja
    {{.high = 0x09facc0e4aa94318, .low = 0x9799ad6e2dea0594}, "llama3"},
    // axolotl: mistral_v1.jinja
    {{.high = 0x876a2693f5ece6d8, .low = 0x98326487e3b467bd}, "mistral"},
    // axolotl: mistral_v2v3.jinja
    {{.high = 0xa9353cb590f781b7, .low = 0xb091cda72d40416a}, "mistral_v3"},
    // TRL: llama3_training.jinja, which marks the same replies
    {{.high = 0x532eb21cf48abd26, .low = 0x94713d122b6c7113}, "llama3"},
    // TRL: qwen2_5_training.jinja, which also marks the line ends before and behind a reply
    {{.high = 0xbf4790988fe77f85, .low = 0xe44712543961e79d}, "qwen"},
    // TRL: qwen2_5.jinja
    {{.high = 0xe392aa06018503fd, .low = 0x2469c9508f79506e}, "qwen"},
};

}  // namespace

std::span<const KnownTemplate> KnownTemplates() { return kKnown; }

std::span<const TemplateForm> TemplateForms() { return kForms; }

const TemplateForm* FormOf(absl::string_view name) {
  const auto found = std::find_if(std::begin(kForms), std::end(kForms), [&](const auto& f) { return f.name == name; });
  return found == std::end(kForms) ? nullptr : found;
}

}  // namespace tdock::text
