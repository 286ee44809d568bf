#include "text/render_to_encode.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/unicode.h"

namespace tdock::text {
namespace {

absl::Status CheckTokens(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                         const SpecialSpellings& specials) {
  if (!chat_template.is_named()) return absl::OkStatus();
  std::string missing;
  if (!specials.bos && chat_template.Uses("bos_token")) missing = "that begins a text";
  for (const absl::string_view token : chat_template.needed_tokens()) {
    if (missing.empty() && !tokenizer.TokenToId(token)) missing = std::string(token);
  }
  if (missing.empty() && !specials.eos && chat_template.Uses("eos_token")) missing = "that ends a text";
  if (missing.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(chat_template.title(), " needs the token ", missing,
                                                 ", which the tokenizer does not have; choose the template that the "
                                                 "model was made with, or a tokenizer that has its tokens"));
}

// Whether a template that takes blanks off may leave nothing of it.
bool IsBlank(absl::string_view text) {
  while (const std::optional<Utf8Char> next = FirstUtf8Char(text)) {
    if (next->code > 0x20 && !IsWhiteSpace(next->code)) return false;
    text.remove_prefix(next->bytes);
  }
  return true;
}

// Replies may lose their thinking; what others say is there, or the template has no place for them.
absl::Status CheckNothingIsLeftOut(const ChatTemplate& chat_template, std::span<const Turn> turns,
                                   std::span<const std::optional<TextRange>> said) {
  for (size_t i = 0; i < turns.size(); ++i) {
    if (said[i] || turns[i].role == Role::kAssistant || IsBlank(turns[i].content)) continue;
    return absl::InvalidArgumentError(absl::StrCat("turn ", i + 1, " of the conversation: it is of the ",
                                                   RoleName(turns[i].role), ", which ", chat_template.title(),
                                                   " does not render here, and would leave out"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RenderedToEncode> RenderToEncode(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                std::span<const Turn> turns, const Context& context,
                                                bool generation_prompt, const StopCheck& stop) {
  const SpecialSpellings specials = SpellingsOf(tokenizer);
  TDOCK_RETURN_IF_ERROR(CheckTokens(chat_template, tokenizer, specials));
  TDOCK_ASSIGN_OR_RETURN(ChatTemplate::Prepared conversation, chat_template.Prepare(turns, context, specials, stop));
  TDOCK_ASSIGN_OR_RETURN(ChatTemplate::Rendered whole, conversation.Render(turns.size(), generation_prompt));
  std::vector<std::optional<TextRange>> said = SaidByEach(whole, turns.size());
  TDOCK_RETURN_IF_ERROR(CheckNothingIsLeftOut(chat_template, turns, said));
  return RenderedToEncode{std::move(conversation), std::move(whole), std::move(said)};
}

std::vector<std::optional<TextRange>> SaidByEach(const ChatTemplate::Rendered& rendered, size_t turns) {
  std::vector<std::optional<TextRange>> said(turns);
  size_t begin = 0;
  for (const jinja::Run& run : rendered.content_turns) {
    if (run.value >= 0 && static_cast<size_t>(run.value) < turns) {
      std::optional<TextRange>& of_turn = said[static_cast<size_t>(run.value)];
      of_turn = TextRange{of_turn ? of_turn->begin : begin, run.end};
    }
    begin = run.end;
  }
  return said;
}

bool IsRefusal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) || absl::IsUnimplemented(status);
}

size_t CommonPrefix(absl::string_view a, absl::string_view b) {
  const auto [at, ignored] =
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin());
  return static_cast<size_t>(at - a.begin());
}

absl::Status AtItsTurn(const absl::Status& status, const Tokenizer& tokenizer, std::span<const Turn> turns,
                       const StopCheck& stop) {
  if (!absl::IsInvalidArgument(status)) return status;
  for (size_t i = 0; i < turns.size(); ++i) {
    const auto alone = tokenizer.Encode(turns[i].content, {.spelled = SpelledSpecial::kAsText, .stop = stop});
    if (!alone.ok() && !absl::IsInvalidArgument(alone.status())) return alone.status();
    if (!alone.ok()) return Annotate(alone.status(), absl::StrCat("turn ", i + 1, " of the conversation"));
  }
  return Annotate(status, "the conversation as the template renders it");
}

}  // namespace tdock::text
