#include "text/conversation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/render_to_encode.h"
#include "text/reply_border.h"

namespace tdock::text {
namespace {

using Rendered = ChatTemplate::Rendered;
using Rewritten = EncodedConversation::Rewritten;

// Part of the text that the model writes itself.
struct Reply {
  TextRange range;
  int32_t turn;
  // The end of what the turn says in it; from there to the end of `range`, the template ends the turn.
  size_t said;
};

int32_t ValueAt(std::span<const jinja::Run> runs, size_t place) {
  const auto found =
      std::upper_bound(runs.begin(), runs.end(), place, [](size_t at, const jinja::Run& run) { return at < run.end; });
  return found == runs.end() ? -1 : found->value;
}

// Finds replies by what a conversation has beyond the prompts that ask for them.
class ReplyFinder {
 public:
  ReplyFinder(const ChatTemplate& chat_template, std::span<const Turn> turns, const Context& context,
              const SpecialSpellings& specials, const Rendered& whole)
      : chat_template_(chat_template), turns_(turns), context_(context), specials_(specials), whole_(whole) {}

  // In the order of the turns, apart from one another. Says in `rewritten` which are not as they were generated; of
  // those that read otherwise later, there is none.
  std::vector<Reply> Find(std::vector<Rewritten>& rewritten) const {
    std::vector<Reply> replies;
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (turns_[i].role != Role::kAssistant) continue;
      const std::optional<Reply> reply = FindTurn(i, rewritten);
      if (!reply || (!replies.empty() && reply->range.begin < replies.back().range.end)) continue;
      replies.push_back(*reply);
    }
    return replies;
  }

 private:
  std::optional<Reply> FindTurn(size_t i, std::vector<Rewritten>& rewritten) const {
    const auto turn = static_cast<int32_t>(i);
    // Where the template refuses a part of the conversation, what the turn says is all that is known of it.
    const auto then = Part(i + 1, false);
    const std::optional<TextRange> said = SaidBy(whole_, turn);
    size_t end = said ? said->end : 0;
    if (then.ok()) {
      const std::optional<TextRange> said_then = SaidBy(*then, turn);
      const size_t same = CommonPrefix(whole_.text, then->text);
      if (said_then != said || (said && same < said->end)) {
        rewritten.push_back({turn, Rewritten::How::kLater});
        return std::nullopt;
      }
      end = same;
    }
    const auto prompt = Part(i, true);
    size_t begin = said ? said->begin : end;
    if (prompt.ok()) {
      const size_t same = CommonPrefix(whole_.text, prompt->text);
      if (same < prompt->text.size()) {
        rewritten.push_back({turn, Rewritten::How::kPrompt});
        const size_t own = BeginOf(turn, begin);
        begin = std::min(begin, std::max(WholeCharacters(same), own));
      } else {
        begin = same;
      }
    }
    if (begin > end) return std::nullopt;
    return Reply{.range = {begin, end}, .turn = turn, .said = std::max(begin, said ? said->end : begin)};
  }

  // Where the part of `turn` that ends at `before` or behind it begins, as far as the template tells.
  size_t BeginOf(int32_t turn, size_t before) const {
    size_t begin = 0, own = before;
    for (const jinja::Run& run : whole_.turns) {
      if (run.value == turn && begin <= before) own = std::min(own, begin);
      if (run.value != turn && run.end <= before) own = before;
      begin = run.end;
    }
    return own;
  }

  // `end`, or the beginning of the character that it is within.
  size_t WholeCharacters(size_t end) const {
    while (end > 0 && end < whole_.text.size() && (static_cast<unsigned char>(whole_.text[end]) & 0xC0) == 0x80) --end;
    return end;
  }

  absl::StatusOr<Rendered> Part(size_t turns, bool generation_prompt) const {
    return chat_template_.Render(turns_.first(turns), context_, generation_prompt, specials_);
  }

  const ChatTemplate& chat_template_;
  const std::span<const Turn> turns_;
  const Context& context_;
  const SpecialSpellings& specials_;
  const Rendered& whole_;
};

// The replies that {% generation %} marks: of the turn that says something in them, or whose loop put them out.
std::vector<Reply> MarkedReplies(const Rendered& rendered) {
  std::vector<Reply> replies;
  for (const TextRange& range : rendered.generations) {
    int32_t turn = -1;
    for (size_t at = range.begin; at < range.end && turn < 0;) {
      turn = ValueAt(rendered.turns, at);
      const auto run = std::upper_bound(rendered.turns.begin(), rendered.turns.end(), at,
                                        [](size_t place, const jinja::Run& r) { return place < r.end; });
      at = run->end;
    }
    replies.push_back({.range = range, .turn = turn, .said = range.end});
  }
  return replies;
}

// The tokens of a whole conversation, parted at the borders before its replies.
class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const Rendered& rendered)
      : tokenizer_(tokenizer), marked_{rendered.text, rendered.content} {}

  absl::Status Encode() {
    TDOCK_ASSIGN_OR_RETURN(encoding_, EncodePart(tokenizer_, "", marked_, 0, marked_.text.size()));
    return absl::OkStatus();
  }

  // Encodes the text before `border` as if the text ended there, and what comes behind it accordingly. Borders are
  // given in their order.
  absl::Status PartAt(size_t border) {
    // Special tokens cut the text in pieces that are encoded each by itself, so only one of them is concerned.
    const size_t first = FirstTokenFrom(border);
    size_t begin_token = first;
    while (begin_token > 0 && !IsSpecial(begin_token - 1)) --begin_token;
    size_t end_token = first;
    while (end_token < encoding_.ids.size() && !IsSpecial(end_token)) ++end_token;
    const std::string special =
        begin_token > 0 ? tokenizer_.IdToToken(encoding_.ids[begin_token - 1]).value_or("") : "";
    const size_t begin = begin_token > 0 ? encoding_.ranges[begin_token - 1].end : 0;
    const size_t end = end_token < encoding_.ids.size() ? encoding_.ranges[end_token].begin : marked_.text.size();
    if (border <= begin) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(Encoding before, EncodeFrom(begin, begin_token, special, border));
    parted_ = border;
    const auto old_ids = std::span(encoding_.ids).subspan(begin_token, end_token - begin_token);
    if (before.ids.size() == first - begin_token && std::equal(before.ids.begin(), before.ids.end(), old_ids.begin())) {
      return absl::OkStatus();
    }
    TDOCK_ASSIGN_OR_RETURN(const Encoding behind,
                           EncodeBehind(tokenizer_, special, marked_, begin, before.ids, border, end));
    Append(before, behind);
    has_parted_ = true;
    Replace(encoding_.ids, begin_token, end_token, before.ids);
    Replace(encoding_.ranges, begin_token, end_token, before.ranges);
    return absl::OkStatus();
  }

  // Where a reply ends whose turn the template ends somewhere in [said, end): behind the last special token there; at
  // `end` if there is none.
  size_t EndOf(size_t said, size_t end) const {
    for (size_t i = FirstTokenFrom(end); i-- > 0 && encoding_.ranges[i].begin >= said;) {
      if (encoding_.ranges[i].end <= end && IsSpecial(i)) return encoding_.ranges[i].end;
    }
    return end;
  }

  // The first token that begins at `place` or behind it.
  size_t FirstTokenFrom(size_t place) const {
    const auto found = std::lower_bound(encoding_.ranges.begin(), encoding_.ranges.end(), place,
                                        [](const TextRange& range, size_t at) { return range.begin < at; });
    return static_cast<size_t>(found - encoding_.ranges.begin());
  }

  Encoding& encoding() { return encoding_; }
  bool has_parted() const { return has_parted_; }

 private:
  // The tokens from `begin`, which is that of the token `begin_token`, to `end`: parted where they are already.
  absl::StatusOr<Encoding> EncodeFrom(size_t begin, size_t begin_token, const std::string& special, size_t end) const {
    if (parted_ <= begin) return EncodePart(tokenizer_, special, marked_, begin, end);
    const auto from = static_cast<std::ptrdiff_t>(begin_token),
               to = static_cast<std::ptrdiff_t>(FirstTokenFrom(parted_));
    Encoding parted{.ids = {encoding_.ids.begin() + from, encoding_.ids.begin() + to},
                    .ranges = {encoding_.ranges.begin() + from, encoding_.ranges.begin() + to}};
    TDOCK_ASSIGN_OR_RETURN(const Encoding more,
                           EncodeBehind(tokenizer_, special, marked_, begin, parted.ids, parted_, end));
    Append(parted, more);
    return parted;
  }

  static void Append(Encoding& encoding, const Encoding& more) {
    encoding.ids.insert(encoding.ids.end(), more.ids.begin(), more.ids.end());
    encoding.ranges.insert(encoding.ranges.end(), more.ranges.begin(), more.ranges.end());
  }

  bool IsSpecial(size_t token) const { return tokenizer_.IsSpecial(encoding_.ids[token]); }

  template <class T>
  static void Replace(std::vector<T>& items, size_t begin, size_t end, const std::vector<T>& with) {
    const auto at = items.erase(items.begin() + static_cast<std::ptrdiff_t>(begin),
                                items.begin() + static_cast<std::ptrdiff_t>(end));
    items.insert(at, with.begin(), with.end());
  }

  const Tokenizer& tokenizer_;
  const MarkedText marked_;
  Encoding encoding_;
  size_t parted_ = 0;  // the last border
  bool has_parted_ = false;
};

// Whether the loss counts each turn.
std::vector<bool> CountedTurns(std::span<const Turn> turns, TrainOn train_on) {
  std::vector<bool> counted(turns.size());
  bool last = true;
  for (size_t i = turns.size(); i-- > 0;) {
    const bool reply = turns[i].role == Role::kAssistant;
    const bool by_rule =
        train_on == TrainOn::kEverything || (reply && (train_on == TrainOn::kReplies || std::exchange(last, false)));
    counted[i] = turns[i].train.value_or(by_rule);
  }
  return counted;
}

// Fills turns and loss mask, token by token.
void Mark(const Rendered& rendered, std::span<const TextRange> ranges, std::span<const Reply> replies,
          std::span<const Turn> turns, TrainOn train_on, EncodedConversation& encoded) {
  const std::vector<bool> counted = CountedTurns(turns, train_on);
  size_t next = 0;  // the first reply that does not end before the token
  for (const TextRange& range : ranges) {
    while (next < replies.size() && replies[next].range.end <= range.begin) ++next;
    const bool in_reply = next < replies.size() && replies[next].range.begin <= range.begin;
    const int32_t turn = in_reply ? replies[next].turn : ValueAt(rendered.turns, range.begin);
    bool counts = train_on == TrainOn::kEverything;
    if (turn >= 0) {
      const auto of = static_cast<size_t>(turn);
      counts = counted[of] && (in_reply || train_on == TrainOn::kEverything || turns[of].role != Role::kAssistant);
    }
    encoded.loss_mask.push_back(counts ? 1 : 0);
    encoded.turns.push_back(turn);
  }
}

}  // namespace

absl::StatusOr<EncodedConversation> EncodeConversation(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                       std::span<const Turn> turns, const EncodeTurns& options) {
  const SpecialSpellings specials = SpellingsOf(tokenizer);
  TDOCK_ASSIGN_OR_RETURN(Rendered rendered,
                         RenderToEncode(chat_template, tokenizer, turns, options.context, options.generation_prompt));
  EncodedConversation encoded;
  std::vector<Reply> replies =
      chat_template.marks_replies(options.context)
          ? MarkedReplies(rendered)
          : ReplyFinder(chat_template, turns, options.context, specials, rendered).Find(encoded.rewritten);
  Encoder encoder(tokenizer, rendered);
  if (const absl::Status status = encoder.Encode(); !status.ok()) return AtItsTurn(status, tokenizer, turns);
  // A template may mark more than what the model writes, as with the line end before it.
  size_t last_begin = 0;
  if (!replies.empty()) {
    last_begin = replies.back().range.begin;
    if (chat_template.marks_replies(options.context) && replies.back().turn > 0) {
      const auto prompt = chat_template.Render(turns.first(static_cast<size_t>(replies.back().turn)), options.context,
                                               /*generation_prompt=*/true, specials);
      const bool asks = prompt.ok() && absl::StartsWith(rendered.text, prompt->text);
      if (asks && prompt->text.size() <= replies.back().range.end)
        last_begin = std::max(last_begin, prompt->text.size());
    }
  }
  for (Reply& reply : replies) {
    TDOCK_RETURN_IF_ERROR(
        Annotate(encoder.PartAt(reply.range.begin), absl::StrCat("turn ", reply.turn + 1, " of the conversation")));
    reply.range.end = encoder.EndOf(reply.said, reply.range.end);
  }
  if (last_begin > 0) {
    TDOCK_RETURN_IF_ERROR(Annotate(encoder.PartAt(last_begin), "the last reply of the conversation"));
    encoded.before_last_reply = encoder.FirstTokenFrom(last_begin);
  }
  Mark(rendered, encoder.encoding().ranges, replies, turns, options.train_on, encoded);
  encoded.parted = encoder.has_parted();
  encoded.ids = std::move(encoder.encoding().ids);
  encoded.text = std::move(rendered.text);
  return encoded;
}

absl::StatusOr<std::vector<int32_t>> EncodeReply(const Tokenizer& tokenizer, absl::string_view prompt,
                                                 std::span<const int32_t> prompt_ids, absl::string_view reply) {
  const std::string text = absl::StrCat(prompt, reply);
  const std::vector<TextRange> all = {{0, text.size()}};
  TDOCK_ASSIGN_OR_RETURN(Encoding behind, EncodeBehind(tokenizer, "", {.text = text, .as_text = all}, 0, prompt_ids,
                                                       prompt.size(), text.size()));
  return std::move(behind.ids);
}

}  // namespace tdock::text
