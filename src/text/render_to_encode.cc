#include "text/render_to_encode.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/call_form.h"
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

// Replies may lose their thinking; what others say is there, and calls, or the template has no place for them.
absl::Status CheckNothingIsLeftOut(const RenderedToEncode& rendered, std::span<const Turn> turns) {
  for (size_t i = 0; i < turns.size(); ++i) {
    const std::optional<TextRange>& said = rendered.said[i];
    const auto left_out = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("turn ", i + 1, " of the conversation: it ", what, ", which ",
                                                     rendered.conversation.title(),
                                                     " does not render here, and would leave out"));
    };
    if (!said && turns[i].role != Role::kAssistant && !IsBlank(turns[i].content)) {
      return left_out(absl::StrCat("is of the ", RoleName(turns[i].role)));
    }
    const absl::string_view text = rendered.whole.text;
    if (!ShowsCalls(rendered.conversation.names_of_calls(i),
                    said ? text.substr(said->begin, said->end - said->begin) : "")) {
      return left_out("has \"tool_calls\"");
    }
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
  RenderedToEncode rendered{std::move(conversation), {}, {}, &tokenizer};
  TDOCK_RETURN_IF_ERROR(SetWhole(turns, std::move(whole), rendered));
  return rendered;
}

absl::Status SetWhole(std::span<const Turn> turns, ChatTemplate::Rendered whole, RenderedToEncode& rendered) {
  rendered.whole = std::move(whole);
  rendered.said = SaidByEach(rendered.whole, turns.size());
  return CheckNothingIsLeftOut(rendered, turns);
}

absl::StatusOr<const ChatTemplate::Rendered*> Renderings::First(size_t turns, bool generation_prompt) {
  const auto value = [](const std::optional<ChatTemplate::Rendered>& of) { return of ? &*of : nullptr; };
  const std::pair<size_t, bool> key(turns, generation_prompt);
  if (const auto found = kept_.find(key); found != kept_.end()) return value(found->second);
  ++renders_;
  absl::StatusOr<ChatTemplate::Rendered> rendered = conversation_.Render(turns, generation_prompt);
  if (!rendered.ok() && !IsRefusal(rendered.status())) return rendered.status();
  last_.reset();
  if (rendered.ok()) last_ = *std::move(rendered);
  const size_t bytes = last_ ? last_->text.size() : 0;
  if (bytes > max_bytes_ - bytes_) return value(last_);
  bytes_ += bytes;
  return value(kept_[key] = std::exchange(last_, std::nullopt));
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
