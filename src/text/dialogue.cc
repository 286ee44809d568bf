#include "text/dialogue.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/conversation.h"
#include "text/render_to_encode.h"
#include "text/reply_border.h"
#include "text/unicode.h"

namespace tdock::text {
namespace {

// Without what templates take off at both ends.
absl::string_view WithoutBlanks(absl::string_view text) {
  size_t at = 0, begin = text.size(), end = text.size();
  while (const std::optional<Utf8Char> next = FirstUtf8Char(text.substr(at))) {
    const bool blank = next->code <= 0x20 || IsWhiteSpace(next->code);
    if (!blank && begin == text.size()) begin = at;
    at += next->bytes;
    if (!blank) end = at;
  }
  return text.substr(begin, end - begin);
}

// Where in the rendered text a reply stands, without what ends its turn.
struct ReplyPlace {
  size_t begin, end;
};

// The places of all replies, or why one of them does not stand where it was sampled.
struct FoundReplies {
  std::vector<ReplyPlace> places = {};
  std::string rewritten = {};
};

// `begins`: where they stood when they were generated; `same`: how much of the text is as it was then.
FoundReplies FindReplies(const ChatTemplate& chat_template, std::span<const Turn> turns, std::span<const size_t> begins,
                         size_t same, const ChatTemplate::Rendered& whole) {
  FoundReplies found;
  const absl::string_view text = whole.text;
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    if (turns[turn].role != Role::kAssistant) continue;
    const size_t number = found.places.size();
    const size_t least = number == 0 ? 0 : found.places.back().end;
    if (number >= begins.size() || begins[number] > same || begins[number] < least) {
      return {.rewritten = absl::StrCat(chat_template.title(), " renders what stands before reply ", number + 1,
                                        " otherwise once more turns follow")};
    }
    const size_t begin = begins[number];
    const std::optional<TextRange> said = SaidBy(whole, static_cast<int32_t>(turn));
    const size_t end = said ? said->end : begin;
    if (end < begin || WithoutBlanks(text.substr(begin, end - begin)) != WithoutBlanks(turns[turn].content)) {
      return {.rewritten = absl::StrCat(chat_template.title(), " renders reply ", number + 1,
                                        " otherwise than it was generated once more turns follow")};
    }
    found.places.push_back({begin, end});
  }
  return found;
}

void Append(std::vector<int32_t>& ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

// The text around the replies as tokens, with theirs between.
absl::StatusOr<std::vector<int32_t>> EncodeAround(const Tokenizer& tokenizer, const MarkedText& marked,
                                                  std::span<const ReplyPlace> replies,
                                                  std::span<const std::vector<int32_t>> sampled) {
  const auto begin_of = [&](size_t reply) {
    return reply < replies.size() ? replies[reply].begin : marked.text.size();
  };
  TDOCK_ASSIGN_OR_RETURN(Encoding first, EncodePart(tokenizer, "", marked, 0, begin_of(0)));
  std::vector<int32_t> ids = std::move(first.ids);
  for (size_t i = 0; i < replies.size(); ++i) {
    const bool special = !ids.empty() && tokenizer.IsSpecial(ids.back());
    const std::string before = special ? tokenizer.IdToToken(ids.back()).value_or("") : "";
    TDOCK_ASSIGN_OR_RETURN(const Encoding behind, EncodeBehind(tokenizer, before, marked, replies[i].begin, sampled[i],
                                                               replies[i].end, begin_of(i + 1)));
    Append(ids, sampled[i]);
    Append(ids, behind.ids);
  }
  return ids;
}

}  // namespace

Dialogue::Dialogue(ChatTemplate chat_template, const Tokenizer& tokenizer, std::optional<std::string> system)
    : chat_template_(std::move(chat_template)), tokenizer_(&tokenizer), system_(std::move(system)) {
  Clear();
}

Dialogue::Asked Dialogue::AskedBefore(std::span<const Turn> turns, size_t replies) const {
  Asked asked;
  const bool known = replies == sampled_.size() && asked_.sizes.size() >= replies;
  if (known) {
    asked.sizes.assign(asked_.sizes.begin(), asked_.sizes.begin() + static_cast<std::ptrdiff_t>(replies));
    if (replies > 0) asked.last = asked_.last.substr(0, asked.sizes.back());
    return asked;
  }
  const SpecialSpellings specials = SpellingsOf(*tokenizer_);
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    if (turns[turn].role != Role::kAssistant) continue;
    auto prompt = chat_template_.Render(turns.first(turn), {}, /*generation_prompt=*/true, specials);
    if (!prompt.ok() || !absl::StartsWith(prompt->text, asked.last)) break;
    asked.last = std::move(prompt->text);
    asked.sizes.push_back(asked.last.size());
  }
  return asked;
}

absl::StatusOr<Dialogue::Encoded> Dialogue::Encode(std::span<const Turn> turns,
                                                   std::span<const std::vector<int32_t>> sampled) const {
  TDOCK_ASSIGN_OR_RETURN(ChatTemplate::Rendered whole,
                         RenderToEncode(chat_template_, *tokenizer_, turns, {}, /*generation_prompt=*/true));
  Asked asked = AskedBefore(turns, sampled.size());
  FoundReplies replies = FindReplies(chat_template_, turns, asked.sizes, CommonPrefix(asked.last, whole.text), whole);
  if (!replies.rewritten.empty()) {
    TDOCK_ASSIGN_OR_RETURN(EncodedConversation encoded,
                           EncodeConversation(chat_template_, *tokenizer_, turns, {.generation_prompt = true}));
    return Encoded{.prompt = {std::move(encoded.ids), std::move(replies.rewritten)}};
  }
  absl::StatusOr<std::vector<int32_t>> ids =
      EncodeAround(*tokenizer_, {whole.text, whole.content}, replies.places, sampled);
  if (!ids.ok()) return AtItsTurn(ids.status(), *tokenizer_, turns);
  asked.last = std::move(whole.text);
  asked.sizes.push_back(asked.last.size());
  return Encoded{.prompt = {*std::move(ids)}, .asked = std::move(asked)};
}

absl::StatusOr<DialoguePrompt> Dialogue::Ask(std::string message, int64_t most_tokens) {
  std::vector<Turn> turns = turns_;
  turns.push_back({Role::kUser, std::move(message)});
  for (size_t dropped = 0;; ++dropped) {
    TDOCK_ASSIGN_OR_RETURN(Encoded encoded, Encode(turns, std::span(sampled_).subspan(dropped)));
    const auto size = static_cast<int64_t>(encoded.prompt.ids.size());
    if (size <= most_tokens) {
      encoded.prompt.dropped_turns = static_cast<int64_t>(2 * dropped);
      turns_ = std::move(turns);
      sampled_.erase(sampled_.begin(), sampled_.begin() + static_cast<std::ptrdiff_t>(dropped));
      asked_ = std::move(encoded.asked);
      return std::move(encoded.prompt);
    }
    if (dropped == sampled_.size()) {
      return absl::OutOfRangeError(
          absl::StrCat("the message makes a prompt of ", size, " tokens, and there is room for ", most_tokens));
    }
    const auto oldest = turns.begin() + static_cast<std::ptrdiff_t>(first_message());
    turns.erase(oldest, oldest + 2);
  }
}

absl::Status Dialogue::Reply(std::vector<int32_t> ids) {
  TDOCK_ASSIGN_OR_RETURN(std::string content, tokenizer_->Decode(ids));
  turns_.push_back({Role::kAssistant, std::move(content)});
  sampled_.push_back(std::move(ids));
  return absl::OkStatus();
}

void Dialogue::Withdraw() {
  if (!turns_.empty() && turns_.back().role == Role::kUser) turns_.pop_back();
}

void Dialogue::Clear() {
  turns_.clear();
  sampled_.clear();
  asked_ = {};
  if (system_) turns_.push_back({Role::kSystem, *system_});
}

absl::StatusOr<ChatTemplate> RawTemplate(const Tokenizer& tokenizer) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<int32_t> before, tokenizer.Encode("", {.add_special_tokens = true}));
  const bool begins = !before.empty() && before.front() == tokenizer.bos_id();
  return ChatTemplate::Parse(absl::StrCat(begins ? "{{- bos_token -}}" : "",
                                          "{%- for message in messages -%}{{- message.content -}}{%- endfor -%}"));
}

}  // namespace tdock::text
