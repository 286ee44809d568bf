#include "text/conversation.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "text/render_to_encode.h"
#include "text/reply_border.h"
#include "text/reply_finder.h"

namespace tdock::text {
namespace {

using Rendered = ChatTemplate::Rendered;
using Rewritten = EncodedConversation::Rewritten;

int32_t ValueAt(std::span<const jinja::Run> runs, size_t place) {
  const auto found =
      std::upper_bound(runs.begin(), runs.end(), place, [](size_t at, const jinja::Run& run) { return at < run.end; });
  return found == runs.end() ? -1 : found->value;
}

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

// Where the tokens must part: before a reply, or, with no turn, at the end of the prompt that asks for the last one.
struct Border {
  size_t place;
  std::optional<int32_t> turn;
};

absl::Status TooManyTokens(size_t max_tokens, absl::string_view why) {
  return absl::OutOfRangeError(
      absl::StrCat("the conversation has more than ", max_tokens, " tokens, the limit, ", why));
}

// True for special tokens that begin a turn of another, and so may end the one before.
bool MayEndTurns(const Tokenizer& tokenizer, int32_t id) {
  return tokenizer.IsSpecial(id) && id != tokenizer.bos_id() && id != tokenizer.pad_id();
}

// The tokens of a whole conversation, parted at the borders before its replies.
class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const Rendered& rendered, const EncodeLimits& limits)
      : tokenizer_(tokenizer), marked_{rendered.text, rendered.content}, limits_(limits) {}

  absl::Status Encode() {
    TDOCK_ASSIGN_OR_RETURN(whole_, EncodePart(tokenizer_, "", marked_, 0, marked_.text.size(), limits_));
    return absl::OkStatus();
  }

  // Encodes the text before each border as if the text ended there, and what comes behind it accordingly. Borders are
  // in their order.
  //
  // Special tokens cut the text in segments that are encoded each by itself, so only those with borders are concerned.
  absl::Status PartAt(std::span<const Border> borders) {
    size_t done = 0;  // tokens of whole_
    for (size_t first = 0; first < borders.size();) {
      const Segment segment = SegmentAt(borders[first].place);
      size_t last = first;
      while (last < borders.size() && borders[last].place <= segment.end) ++last;
      const auto inside = borders.subspan(first, last - first);
      first = last;
      if (inside.back().place <= segment.begin) continue;
      Add(whole_, done, segment.begin_token);
      TDOCK_RETURN_IF_ERROR(PartSegment(segment, inside));
      done = segment.end_token;
    }
    Add(whole_, done, whole_.ids.size());
    if (parted_.ids.size() <= limits_.max_tokens) return absl::OkStatus();
    return TooManyTokens(limits_.max_tokens, "once they part before each reply");
  }

  // Where a reply ends whose turn the template ends somewhere in [said, end): behind the last special token there.
  // Nothing if there is none.
  std::optional<size_t> EndOf(size_t said, size_t end) const {
    for (size_t i = FirstTokenFrom(parted_, end); i-- > 0 && parted_.ranges[i].begin >= said;) {
      if (parted_.ranges[i].end <= end && tokenizer_.IsSpecial(parted_.ids[i])) return parted_.ranges[i].end;
    }
    return std::nullopt;
  }

  // Behind the special token that begins at `place`, if the next turn begins so.
  size_t BehindMarker(size_t place) const {
    const size_t token = FirstTokenFrom(place);
    if (token == parted_.ids.size() || parted_.ranges[token].begin != place) return place;
    return MayEndTurns(tokenizer_, parted_.ids[token]) ? parted_.ranges[token].end : place;
  }

  // The first token that begins at `place` or behind it.
  size_t FirstTokenFrom(size_t place) const { return FirstTokenFrom(parted_, place); }

  Encoding& encoding() { return parted_; }
  bool has_parted() const { return has_parted_; }

 private:
  // The borders of a segment up to which the context reaches back to its beginning; it then only reaches back over
  // kBordersOfContext of them, so that time does not grow with the square of their number.
  static constexpr size_t kBordersFromBegin = 16, kBordersOfContext = 2;

  // Text between special tokens, and its tokens in whole_.
  struct Segment {
    size_t begin, end;
    size_t begin_token, end_token;
    std::string special;  // before it; "": nothing is
  };

  static size_t FirstTokenFrom(const Encoding& encoding, size_t place) {
    const auto found = std::lower_bound(encoding.ranges.begin(), encoding.ranges.end(), place,
                                        [](const TextRange& range, size_t at) { return range.begin < at; });
    return static_cast<size_t>(found - encoding.ranges.begin());
  }

  // The one that reaches to `place`, or ends behind it.
  Segment SegmentAt(size_t place) const {
    const auto is_special = [&](size_t token) { return tokenizer_.IsSpecial(whole_.ids[token]); };
    size_t begin_token = FirstTokenFrom(whole_, place), end_token = begin_token;
    while (begin_token > 0 && !is_special(begin_token - 1)) --begin_token;
    while (end_token < whole_.ids.size() && !is_special(end_token)) ++end_token;
    Segment segment{
        .begin = 0, .end = marked_.text.size(), .begin_token = begin_token, .end_token = end_token, .special = {}};
    if (end_token < whole_.ids.size()) segment.end = whole_.ranges[end_token].begin;
    if (begin_token > 0) {
      segment.begin = whole_.ranges[begin_token - 1].end;
      segment.special = tokenizer_.IdToToken(whole_.ids[begin_token - 1]).value_or("");
    }
    return segment;
  }

  absl::Status PartSegment(const Segment& segment, std::span<const Border> borders) {
    // Where each border is in the text, and its first token in parted_; first of all, the beginning.
    std::vector<std::pair<size_t, size_t>> places = {{segment.begin, parted_.ids.size()}};
    size_t next = segment.begin_token;  // of whole_, as long as the tokens are the same
    bool same = true;
    for (const Border& border : borders) {
      if (border.place <= places.back().first) continue;
      absl::StatusOr<Encoding> before = EncodeFromLast(segment, places, border.place);
      if (!before.ok()) return AtBorder(before.status(), border);
      const size_t end = FirstTokenFrom(whole_, border.place);
      same = same && end - next == before->ids.size() &&
             std::equal(before->ids.begin(), before->ids.end(), whole_.ids.begin() + static_cast<std::ptrdiff_t>(next));
      Add(same ? whole_ : *before, same ? next : 0, same ? end : before->ids.size());
      next = end;
      places.emplace_back(border.place, parted_.ids.size());
    }
    if (same && places.size() - 1 <= kBordersFromBegin) {
      Add(whole_, next, segment.end_token);
      return absl::OkStatus();
    }
    absl::StatusOr<Encoding> behind = EncodeFromLast(segment, places, segment.end);
    if (!behind.ok()) return AtBorder(behind.status(), borders.back());
    same = same &&
           std::equal(behind->ids.begin(), behind->ids.end(), whole_.ids.begin() + static_cast<std::ptrdiff_t>(next),
                      whole_.ids.begin() + static_cast<std::ptrdiff_t>(segment.end_token));
    has_parted_ = has_parted_ || !same;
    Add(*behind, 0, behind->ids.size());
    return absl::OkStatus();
  }

  // The tokens from the last of `places` up to `end`, as they follow those before it.
  absl::StatusOr<Encoding> EncodeFromLast(const Segment& segment, std::span<const std::pair<size_t, size_t>> places,
                                          size_t end) const {
    const size_t borders = places.size() - 1;
    if (borders == 0) return EncodePart(tokenizer_, segment.special, marked_, segment.begin, end, limits_);
    const bool from_begin = borders <= kBordersFromBegin;
    const auto [begin, begin_token] = places[from_begin ? 0 : borders - kBordersOfContext];
    const auto before = std::span(parted_.ids).subspan(begin_token);
    return EncodeBehind(tokenizer_, from_begin ? segment.special : "", marked_, begin, before, places.back().first, end,
                        limits_);
  }

  static absl::Status AtBorder(const absl::Status& status, const Border& border) {
    if (!absl::IsInvalidArgument(status)) return status;
    return Annotate(status, border.turn ? absl::StrCat("turn ", *border.turn + 1, " of the conversation")
                                        : "the last reply of the conversation");
  }

  // Appends tokens [begin, end) of `from`.
  void Add(const Encoding& from, size_t begin, size_t end) {
    const auto first = static_cast<std::ptrdiff_t>(begin), last = static_cast<std::ptrdiff_t>(end);
    parted_.ids.insert(parted_.ids.end(), from.ids.begin() + first, from.ids.begin() + last);
    parted_.ranges.insert(parted_.ranges.end(), from.ranges.begin() + first, from.ranges.begin() + last);
  }

  const Tokenizer& tokenizer_;
  const MarkedText marked_;
  const EncodeLimits& limits_;
  Encoding whole_, parted_;
  bool has_parted_ = false;
};

// True for each turn that the loss counts.
std::vector<bool> CountedTurns(std::span<const Turn> turns, const EncodeTurns& options) {
  TDOCK_CHECK(options.counted.empty() || options.counted.size() == turns.size(), "each turn is counted or not");
  if (!options.counted.empty()) return options.counted;
  std::vector<bool> counted(turns.size());
  bool last = true;
  for (size_t i = turns.size(); i-- > 0;) {
    const bool reply = turns[i].role == Role::kAssistant;
    const bool by_rule = options.train_on == TrainOn::kEverything ||
                         (reply && (options.train_on != TrainOn::kLastReply || std::exchange(last, false)));
    counted[i] = turns[i].train.value_or(by_rule);
  }
  return counted;
}

// For each of so many turns, whether it is rewritten in one of these ways.
std::vector<bool> RewrittenTurns(const RepliesOfConversation& found, std::initializer_list<Rewritten::How> hows,
                                 size_t turns) {
  std::vector<bool> rewritten(turns);
  for (const auto& [turn, how] : found.rewritten) {
    if (std::find(hows.begin(), hows.end(), how) != hows.end()) rewritten[static_cast<size_t>(turn)] = true;
  }
  return rewritten;
}

// The replies that are rendered, and with kEachReply only those that read as they were generated.
absl::StatusOr<RepliesOfConversation> RepliesOf(const ChatTemplate& chat_template, const RenderedToEncode& rendered,
                                                std::span<const Turn> turns, const EncodeTurns& options,
                                                Renderings& renderings) {
  RepliesOfConversation found;
  const bool as_generated = options.train_on == TrainOn::kEachReply;
  if (!chat_template.marks_replies(options.context)) {
    TDOCK_ASSIGN_OR_RETURN(found, FindReplies(rendered, turns, renderings));
  } else {
    found.replies = MarkedReplies(rendered.whole);
    if (as_generated && !chat_template.is_named()) {  // named ones change nothing that was said
      TDOCK_ASSIGN_OR_RETURN(found.rewritten, FindRewritten(rendered, turns, renderings));
    }
  }
  if (!as_generated) return found;
  using How = Rewritten::How;
  const std::vector<bool> rewritten = RewrittenTurns(found, {How::kLater, How::kEnd}, turns.size());
  std::erase_if(found.replies,
                [&](const Reply& reply) { return reply.turn >= 0 && rewritten[static_cast<size_t>(reply.turn)]; });
  return found;
}

// Puts the ends of replies, of so many turns, where the special tokens are that end them. True if the last one has
// none.
bool PlaceEnds(const Encoder& encoder, size_t turns, RepliesOfConversation& found) {
  const std::vector<bool> ends_otherwise = RewrittenTurns(found, {Rewritten::How::kEnd}, turns);
  bool is_open = false;
  for (Reply& reply : found.replies) {
    const std::optional<size_t> end = encoder.EndOf(reply.said, reply.range.end);
    is_open = !end;
    if (end) reply.range.end = *end;
    if (end || ends_otherwise[static_cast<size_t>(reply.turn)]) continue;
    const size_t behind = encoder.BehindMarker(reply.range.end);
    is_open = behind == reply.range.end;
    reply.range.end = behind;
  }
  return is_open;
}

// The special token that would stand behind the last reply, with which the text ends, if the user, or the tool that it
// calls, went on.
absl::StatusOr<std::optional<int32_t>> MarkerBehind(const ChatTemplate& chat_template, const RenderedToEncode& rendered,
                                                    std::span<const Turn> turns, const EncodeTurns& options) {
  const size_t last = turns.size() - 1;
  std::vector<Turn> longer(turns.begin(), turns.end());
  longer.push_back(
      {.role = rendered.conversation.names_of_calls(last).empty() ? Role::kUser : Role::kTool, .content = "a"});
  const auto next = RenderToEncode(chat_template, *rendered.tokenizer, longer, options.context, false, options.stop);
  if (!next.ok() && !IsRefusal(next.status())) return next.status();
  if (!next.ok()) return std::nullopt;
  // Behind what the reply says, the text is the same even if the template has changed what stands before.
  const bool both_say = rendered.said[last] && next->said[last];
  absl::string_view ends = rendered.whole.text, behind = next->whole.text;
  ends.remove_prefix(both_say ? rendered.said[last]->end : 0);
  behind.remove_prefix(both_say ? next->said[last]->end : 0);
  if (!absl::ConsumePrefix(&behind, ends)) return std::nullopt;
  const auto encoded = rendered.tokenizer->EncodeWithRanges(std::string(behind), {.spelled = SpelledSpecial::kParse});
  if (!encoded.ok() || encoded->ids.empty() || encoded->ranges[0].begin != 0) return std::nullopt;
  return MayEndTurns(*rendered.tokenizer, encoded->ids[0]) ? std::optional(encoded->ids[0]) : std::nullopt;
}

// Fills turns, loss mask and the replies that are not counted.
void Mark(const Rendered& rendered, std::span<const TextRange> ranges, std::span<const Reply> replies,
          std::span<const Turn> turns, const EncodeTurns& options, EncodedConversation& encoded) {
  const std::vector<bool> counted = CountedTurns(turns, options);
  const bool everything = options.train_on == TrainOn::kEverything;
  std::vector<bool> is_counted(turns.size());
  size_t next = 0;  // the first reply that does not end before the token
  for (const TextRange& range : ranges) {
    while (next < replies.size() && replies[next].range.end <= range.begin) ++next;
    const bool in_reply = next < replies.size() && replies[next].range.begin <= range.begin;
    const int32_t turn = in_reply ? replies[next].turn : ValueAt(rendered.turns, range.begin);
    bool counts = everything;
    if (turn >= 0) {
      const auto of = static_cast<size_t>(turn);
      counts = counted[of] && (in_reply || everything || turns[of].role != Role::kAssistant);
      if (counts) is_counted[of] = true;
    }
    encoded.loss_mask.push_back(counts ? 1 : 0);
    encoded.turns.push_back(turn);
  }
  for (size_t i = 0; i < turns.size(); ++i) {
    const bool lacks = turns[i].role == Role::kAssistant && counted[i] && !is_counted[i];
    if (lacks) encoded.uncounted.push_back(static_cast<int32_t>(i));
  }
}

// The borders before the replies, and before the last one also that at the end of the prompt that asks for it.
struct Borders {
  std::vector<Border> borders;
  size_t last_begin = 0;
};
absl::StatusOr<Borders> BordersOf(const RenderedToEncode& rendered, std::span<const Reply> replies, bool marked,
                                  Renderings& renderings) {
  Borders made;
  for (const Reply& reply : replies) made.borders.push_back({reply.range.begin, reply.turn});
  if (replies.empty()) return made;
  const Reply& last = replies.back();
  made.last_begin = last.range.begin;
  // A template may mark more than what the model writes, as with the line end before it.
  if (marked && last.turn > 0) {
    TDOCK_ASSIGN_OR_RETURN(const Rendered* const prompt, renderings.First(static_cast<size_t>(last.turn), true));
    const bool asks = prompt != nullptr && absl::StartsWith(rendered.whole.text, prompt->text);
    const size_t asked = asks ? prompt->text.size() : 0;
    if (asked <= last.range.end) made.last_begin = std::max(made.last_begin, asked);
  }
  made.borders.push_back({made.last_begin, std::nullopt});
  return made;
}

}  // namespace

absl::StatusOr<EncodedConversation> EncodeConversation(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                       std::span<const Turn> turns, const EncodeTurns& options) {
  TDOCK_ASSIGN_OR_RETURN(RenderedToEncode rendered, RenderToEncode(chat_template, tokenizer, turns, options.context,
                                                                   options.generation_prompt, options.stop));
  const EncodeLimits limits{options.max_tokens, options.stop};
  Encoder encoder(tokenizer, rendered.whole, limits);
  if (const absl::Status status = encoder.Encode(); !status.ok()) {
    return AtItsTurn(status, tokenizer, turns, options.stop);
  }
  const bool marked = chat_template.marks_replies(options.context);
  Renderings renderings(rendered.conversation, 0);
  TDOCK_ASSIGN_OR_RETURN(RepliesOfConversation found, RepliesOf(chat_template, rendered, turns, options, renderings));
  TDOCK_ASSIGN_OR_RETURN(const Borders borders, BordersOf(rendered, found.replies, marked, renderings));
  TDOCK_RETURN_IF_ERROR(encoder.PartAt(borders.borders));
  const bool is_open = !marked && PlaceEnds(encoder, turns.size(), found);
  EncodedConversation encoded;
  if (borders.last_begin > 0) encoded.before_last_reply = encoder.FirstTokenFrom(borders.last_begin);
  Encoding& tokens = encoder.encoding();
  const size_t size = rendered.whole.text.size();
  std::optional<int32_t> marker;
  if (is_open && !options.generation_prompt && static_cast<size_t>(found.replies.back().turn) + 1 == turns.size() &&
      found.replies.back().range.end == size && CountedTurns(turns, options).back()) {
    TDOCK_ASSIGN_OR_RETURN(marker, MarkerBehind(chat_template, rendered, turns, options));
  }
  encoded.text = std::move(rendered.whole.text);
  if (marker) {
    if (tokens.ids.size() >= options.max_tokens) {
      return TooManyTokens(options.max_tokens, "with the end of its last reply");
    }
    absl::StrAppend(&encoded.text, tokenizer.IdToToken(*marker).value_or(""));
    tokens.ids.push_back(*marker);
    tokens.ranges.push_back({size, encoded.text.size()});
    found.replies.back().range.end = encoded.text.size();
  }
  Mark(rendered.whole, tokens.ranges, found.replies, turns, options, encoded);
  encoded.rewritten = std::move(found.rewritten);
  encoded.renders = renderings.renders() + 1;  // of the whole
  encoded.parted = encoder.has_parted();
  encoded.ids = std::move(tokens.ids);
  return encoded;
}

absl::StatusOr<TrainedParts> PartsToTrain(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                          std::span<const Turn> turns, const EncodeTurns& options) {
  constexpr size_t kMaxKeptBytes = size_t{32} << 20;
  EncodeTurns each = options;
  each.train_on = TrainOn::kEachReply;
  TDOCK_ASSIGN_OR_RETURN(RenderedToEncode rendered,
                         RenderToEncode(chat_template, tokenizer, turns, options.context, false, options.stop));
  // All parts compare the same beginnings.
  Renderings renderings(rendered.conversation, kMaxKeptBytes);
  std::vector<bool> left = CountedTurns(turns, options);
  TrainedParts made;
  for (size_t end = turns.size(); end > 0;) {
    const auto first = turns.first(end);
    TrainedPart part{.turns = end, .counted = std::vector<bool>(end)};
    // A turn of another is counted where a turn says so.
    for (size_t i = 0; i < end && end == turns.size(); ++i) {
      part.counted[i] = left[i] && turns[i].role != Role::kAssistant;
    }
    absl::Status refused;
    if (end < turns.size()) {
      TDOCK_ASSIGN_OR_RETURN(const Rendered* const whole, renderings.First(end, false));
      refused = whole == nullptr ? absl::InvalidArgumentError("") : SetWhole(first, *whole, rendered);
    }
    if (refused.ok()) {
      TDOCK_ASSIGN_OR_RETURN(const RepliesOfConversation found,
                             RepliesOf(chat_template, rendered, first, each, renderings));
      for (const Reply& reply : found.replies) {
        const auto turn = static_cast<size_t>(reply.turn);
        if (reply.turn >= 0 && left[turn] && reply.range.begin < reply.range.end) part.counted[turn] = true;
      }
    }
    bool counts = false;
    for (size_t i = 0; i < end; ++i) {
      counts = counts || part.counted[i];
      if (part.counted[i]) left[i] = false;
    }
    if (counts) made.parts.push_back(std::move(part));
    // The last reply of a part reads as it was generated, or is not rendered as one.
    if (left[end - 1]) made.untrained.insert(made.untrained.begin(), static_cast<int32_t>(end - 1));
    left[end - 1] = false;
    while (end > 0 && !left[end - 1]) --end;
  }
  made.renders = renderings.renders() + 1;  // of the whole
  return made;
}

absl::StatusOr<std::vector<int32_t>> EncodeReply(const Tokenizer& tokenizer, absl::string_view prompt,
                                                 std::span<const int32_t> prompt_ids, absl::string_view reply) {
  const std::string text = absl::StrCat(prompt, reply);
  const std::vector<TextRange> all = {{0, text.size()}};
  TDOCK_ASSIGN_OR_RETURN(Encoding behind, EncodeBehind(tokenizer, "", {.text = text, .as_text = all}, 0, prompt_ids,
                                                       prompt.size(), text.size(), /*limits=*/{}));
  return std::move(behind.ids);
}

}  // namespace tdock::text
