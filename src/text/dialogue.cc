#include "text/dialogue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/conversation.h"
#include "text/render_to_encode.h"
#include "text/reply_border.h"
#include "text/reply_finder.h"
#include "text/unicode.h"

namespace tdock::text {
namespace {

// A message that leaves no room is counted up to twice the room and so many tokens, so that its error can say its size.
constexpr size_t kTokensCounted = 4096;

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
struct FoundPlaces {
  std::vector<ReplyPlace> places = {};
  std::string rewritten = {};
};

// `begins`: where they stood when they were generated; `same`: how much of the text is as it was then.
FoundPlaces FindPlaces(const RenderedToEncode& rendered, std::span<const Turn> turns, std::span<const size_t> begins,
                       size_t same) {
  FoundPlaces found;
  const absl::string_view text = rendered.whole.text;
  const std::string& title = rendered.conversation.title();
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    if (turns[turn].role != Role::kAssistant) continue;
    const size_t number = found.places.size();
    const size_t least = number == 0 ? 0 : found.places.back().end;
    if (number >= begins.size() || begins[number] > same || begins[number] < least) {
      return {.rewritten = absl::StrCat(title, " renders what stands before reply ", number + 1,
                                        " otherwise once more turns follow")};
    }
    const size_t begin = begins[number];
    const std::optional<TextRange>& said = rendered.said[turn];
    const size_t end = said ? said->end : begin;
    if (end < begin || WithoutBlanks(text.substr(begin, end - begin)) != WithoutBlanks(turns[turn].content)) {
      return {.rewritten = absl::StrCat(title, " renders reply ", number + 1,
                                        " otherwise than it was generated once more turns follow")};
    }
    found.places.push_back({begin, end});
  }
  return found;
}

absl::Status NoRoom(size_t max_tokens) {
  return absl::OutOfRangeError(absl::StrCat("the prompt has more than ", max_tokens, " tokens"));
}

void Append(std::vector<int32_t>& ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

// The text around the replies as tokens, with theirs between.
absl::StatusOr<std::vector<int32_t>> EncodeAround(const Tokenizer& tokenizer, const MarkedText& marked,
                                                  std::span<const ReplyPlace> replies,
                                                  std::span<const std::vector<int32_t>> sampled, size_t max_tokens) {
  const auto begin_of = [&](size_t reply) {
    return reply < replies.size() ? replies[reply].begin : marked.text.size();
  };
  TDOCK_ASSIGN_OR_RETURN(Encoding first, EncodePart(tokenizer, "", marked, 0, begin_of(0), {.max_tokens = max_tokens}));
  std::vector<int32_t> ids = std::move(first.ids);
  for (size_t i = 0; i < replies.size(); ++i) {
    const bool special = !ids.empty() && tokenizer.IsSpecial(ids.back());
    const std::string before = special ? tokenizer.IdToToken(ids.back()).value_or("") : "";
    Append(ids, sampled[i]);
    if (ids.size() > max_tokens) return NoRoom(max_tokens);
    TDOCK_ASSIGN_OR_RETURN(const Encoding behind,
                           EncodeBehind(tokenizer, before, marked, replies[i].begin, sampled[i], replies[i].end,
                                        begin_of(i + 1), {.max_tokens = max_tokens - ids.size()}));
    Append(ids, behind.ids);
  }
  if (ids.size() > max_tokens) return NoRoom(max_tokens);
  return ids;
}

}  // namespace

Dialogue::Dialogue(ChatTemplate chat_template, const Tokenizer& tokenizer, std::optional<std::string> system)
    : chat_template_(std::move(chat_template)), tokenizer_(&tokenizer), system_(std::move(system)) {
  Clear();
}

absl::StatusOr<Dialogue::Asked> Dialogue::AskedBefore(const RenderedToEncode& rendered, std::span<const Turn> turns,
                                                      size_t replies) const {
  Asked asked;
  const bool known = replies == sampled_.size() && asked_.sizes.size() >= replies;
  if (known) {
    asked.sizes.assign(asked_.sizes.begin(), asked_.sizes.begin() + static_cast<std::ptrdiff_t>(replies));
    if (replies > 0) asked.last = asked_.last.substr(0, asked.sizes.back());
    return asked;
  }
  TDOCK_ASSIGN_OR_RETURN(PromptsOfConversation prompts, FindPrompts(rendered, turns));
  asked.sizes = std::move(prompts.ends);
  if (!asked.sizes.empty()) asked.last = rendered.whole.text.substr(0, asked.sizes.back());
  return asked;
}

std::vector<Turn> Dialogue::Without(size_t dropped, const std::vector<Turn>& turns) const {
  const auto oldest = turns.begin() + static_cast<std::ptrdiff_t>(first_message());
  std::vector<Turn> left(turns.begin(), oldest);
  left.insert(left.end(), oldest + static_cast<std::ptrdiff_t>(2 * dropped), turns.end());
  return left;
}

absl::StatusOr<Dialogue::Encoded> Dialogue::Encode(std::span<const Turn> turns,
                                                   std::span<const std::vector<int32_t>> sampled,
                                                   size_t max_tokens) const {
  TDOCK_ASSIGN_OR_RETURN(RenderedToEncode rendered,
                         RenderToEncode(chat_template_, *tokenizer_, turns, {}, /*generation_prompt=*/true, {}));
  TDOCK_ASSIGN_OR_RETURN(Asked asked, AskedBefore(rendered, turns, sampled.size()));
  FoundPlaces replies = FindPlaces(rendered, turns, asked.sizes, CommonPrefix(asked.last, rendered.whole.text));
  if (!replies.rewritten.empty()) {
    TDOCK_ASSIGN_OR_RETURN(
        EncodedConversation encoded,
        EncodeConversation(chat_template_, *tokenizer_, turns, {.generation_prompt = true, .max_tokens = max_tokens}));
    return Encoded{.prompt = {std::move(encoded.ids), std::move(replies.rewritten)}};
  }
  absl::StatusOr<std::vector<int32_t>> ids =
      EncodeAround(*tokenizer_, {rendered.whole.text, rendered.whole.content}, replies.places, sampled, max_tokens);
  if (!ids.ok()) return AtItsTurn(ids.status(), *tokenizer_, turns, {});
  asked.last = std::move(rendered.whole.text);
  asked.sizes.push_back(asked.last.size());
  return Encoded{.prompt = {*std::move(ids)}, .asked = std::move(asked)};
}

absl::StatusOr<DialoguePrompt> Dialogue::Ask(std::string message, int64_t max_tokens) {
  const size_t room = max_tokens > 0 ? static_cast<size_t>(max_tokens) : 0;
  const size_t replies = sampled_.size();
  std::vector<Turn> turns = turns_;
  turns.push_back({Role::kUser, std::move(message)});
  const auto encode = [&](size_t dropped, size_t max) {
    return Encode(Without(dropped, turns), std::span(sampled_).subspan(dropped), max);
  };
  const auto keep = [&](size_t dropped, Encoded encoded) {
    encoded.prompt.dropped_turns = static_cast<int64_t>(2 * dropped);
    turns_ = Without(dropped, turns);
    sampled_.erase(sampled_.begin(), sampled_.begin() + static_cast<std::ptrdiff_t>(dropped));
    asked_ = std::move(encoded.asked);
    return std::move(encoded.prompt);
  };
  absl::StatusOr<Encoded> encoded = encode(0, room);
  if (encoded.ok()) return keep(0, *std::move(encoded));
  // How many are dropped: too few, and enough. Steps double, and then halve.
  size_t few = 0, enough = 0;
  while (absl::IsOutOfRange(encoded.status()) && enough < replies) {
    few = enough;
    enough = std::min(replies, std::max<size_t>(1, 2 * enough));
    encoded = encode(enough, room);
  }
  if (absl::IsOutOfRange(encoded.status())) return TooLong(encode(replies, 2 * room + kTokensCounted), room);
  if (!encoded.ok()) return encoded.status();
  while (enough - few > 1) {
    const size_t middle = few + (enough - few) / 2;
    absl::StatusOr<Encoded> fewer = encode(middle, room);
    if (!fewer.ok() && !absl::IsOutOfRange(fewer.status())) return fewer.status();
    (fewer.ok() ? enough : few) = middle;
    if (fewer.ok()) encoded = std::move(fewer);
  }
  return keep(enough, *std::move(encoded));
}

// The error for a message that alone makes the prompt `alone`.
absl::Status Dialogue::TooLong(const absl::StatusOr<Encoded>& alone, size_t room) {
  if (!alone.ok() && !absl::IsOutOfRange(alone.status())) return alone.status();
  const std::string size =
      alone.ok() ? absl::StrCat(alone->prompt.ids.size()) : absl::StrCat("more than ", 2 * room + kTokensCounted);
  return absl::OutOfRangeError(
      absl::StrCat("the message makes a prompt of ", size, " tokens, and there is room for ", room));
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
