#include "trainer/stages/transcript.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "text/conversation.h"
#include "text/replies/reply_forms.h"

namespace tdock::trainer {
namespace {

std::string WithoutSpace(absl::string_view text) {
  std::string left;
  for (const char c : text) {
    if (!absl::ascii_isspace(static_cast<unsigned char>(c))) left.push_back(c);
  }
  return left;
}

std::string TextOfTurns(const std::vector<text::Turn>& said) {
  std::string text;
  for (const text::Turn& turn : said) absl::StrAppend(&text, turn.content);
  return text;
}

// `content` up to its first `most` tokens, of which it has more.
std::string CutContent(absl::string_view content, const text::Encoding& encoding, int64_t most) {
  size_t end = encoding.ranges[static_cast<size_t>(most)].begin;
  while (end > 0 && (static_cast<unsigned char>(content[end]) & 0xC0) == 0x80) --end;  // within a character
  return absl::StrCat(content.substr(0, end), "\n[cut: ", std::ssize(encoding.ids) - most, " more tokens]");
}

}  // namespace

absl::StatusOr<std::string> ReplyText(const text::Tokenizer& tokenizer, const engine::Completion& completion) {
  std::span<const int32_t> said = completion.tokens;
  if (completion.finish_reason == engine::FinishReason::kEndToken) said = said.first(said.size() - 1);
  return tokenizer.Decode(said, text::SpecialTokens::kKeep);
}

absl::Status CheckRules(const TurnRules& rules, bool is_agent) {
  if (is_agent || rules.format == environment::TurnFormat::kText || rules.chat_template != nullptr) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "environment.format=chat renders turns by a chat template, and the model has none: name one in data.template, or "
      "set environment.format to text");
}

// A template says nothing of turns that it does not write.
Transcript::Transcript(const TurnRules& rules)
    : rules_(&rules),
      reading_(text::ReadingOf(rules.tool_format,
                               rules.format == environment::TurnFormat::kChat ? rules.chat_template : nullptr,
                               rules.tools)) {}

text::ReplyOptions Transcript::OptionsOf(const ReplyRules& rules) const {
  text::ReplyOptions options = reading_.options;
  options.id_seed = rules.id_seed;
  options.reads_calls = options.reads_calls && rules.reads_calls;
  options.reads_reasoning = options.reads_reasoning && rules.reads_reasoning;
  options.reasoning_open = options.reads_reasoning && text::OpensReasoning(reading_.form, rendered_);
  return options;
}

absl::StatusOr<text::Turn> Transcript::ReadReply(absl::string_view said, const ReplyRules& rules) const {
  text::TurnReading reading = reading_;
  reading.options = OptionsOf(rules);
  return text::ReadModelTurn(reading, said, reading.options.reasoning_open);
}

text::ParsedReply Transcript::ParseReply(const engine::Completion& completion, const ReplyRules& rules) const {
  const text::Tokenizer& tokenizer = *rules_->tokenizer;
  std::string said, plain;
  const std::unique_ptr<text::StreamDecoder> decoder = tokenizer.MakeStreamDecoder();
  for (const int32_t token : completion.tokens) {
    const std::string more = decoder->Push(token).value_or("");  // the engine sampled it
    absl::StrAppend(&said, more);
    absl::StrAppend(&plain, more);
    if (!tokenizer.IsSpecial(token)) continue;
    const std::string spelled = tokenizer.IdToToken(token).value_or("");
    if (text::IsReplyMark(reading_.form, spelled)) absl::StrAppend(&said, spelled);
  }
  const std::string rest = decoder->Finish();
  absl::StrAppend(&said, rest);
  absl::StrAppend(&plain, rest);
  if (completion.text_bytes) {
    const size_t stop = plain.size() - std::min(plain.size(), *completion.text_bytes);
    said.resize(said.size() - std::min(said.size(), stop));
  }
  return text::ParseReply(reading_.form, said, OptionsOf(rules));
}

absl::Status Transcript::BeginWith(const std::vector<text::Turn>& turns, const environment::EpisodeRow& row) {
  TDOCK_ASSIGN_OR_RETURN(Next next, Render(turns));
  if (rules_->format == environment::TurnFormat::kText) {
    prompt_ = next.text == row.prompt ? row.prompt_ids : std::move(next.ids);
    if (prompt_.empty()) return absl::InvalidArgumentError("the messages have no text");
    // As the prompts of the data begin.
    const std::optional<int32_t> bos = rules_->tokenizer->bos_id();
    const bool begins = bos && !row.prompt_ids.empty() && row.prompt_ids.front() == *bos;
    if (begins && prompt_.front() != *bos) prompt_.insert(prompt_.begin(), *bos);
    SetTail(prompt_);
    return absl::OkStatus();
  }
  prompt_ = std::move(next.ids);
  rendered_ = std::move(next.rendered);
  conversation_ = std::move(next.said);
  return absl::OkStatus();
}

absl::Status Transcript::Begin(const environment::EpisodeRow& row) {
  prompt_ = row.prompt_ids;
  if (rules_->format == environment::TurnFormat::kText) {
    SetTail(row.prompt_ids);
    return absl::OkStatus();
  }
  if (row.messages.empty()) {
    return absl::InvalidArgumentError(
        "environment.format=chat renders turns by the chat template, and the prompt is plain text: set "
        "environment.format to text, or data.style to chat where the data has turns");
  }
  TDOCK_ASSIGN_OR_RETURN(text::EncodedConversation alone,
                         text::EncodeConversation(*rules_->chat_template, *rules_->tokenizer, row.messages,
                                                  {.generation_prompt = true, .context = {}}));
  if (alone.ids != row.prompt_ids) {
    return absl::InvalidArgumentError(
        "the prompt is not what the chat template makes of its turns alone: it has tools or documents of its own, "
        "which an environment gives instead, or it was cut (data.truncation)");
  }
  conversation_ = row.messages;
  rendered_ = std::move(alone.text);
  return absl::OkStatus();
}

absl::Status Transcript::AddFirst(const environment::Observation& first) {
  TDOCK_ASSIGN_OR_RETURN(std::vector<text::Turn> shortened, Shortened(first.messages));
  if (rules_->format == environment::TurnFormat::kText) {
    TDOCK_ASSIGN_OR_RETURN(const Next next, RenderText(std::move(shortened)));
    prompt_.insert(prompt_.end(), next.ids.begin(), next.ids.end());
    return absl::OkStatus();
  }
  if (shortened.empty() && rules_->tools.empty()) return absl::OkStatus();
  if (first.continues && !shortened.empty()) {
    text::Turn& last = conversation_.back();
    if (last.role != shortened.front().role) {
      return absl::InvalidArgumentError(
          absl::StrCat("what it says first continues a turn of the ", text::RoleName(shortened.front().role),
                       ", and the prompt ends with one of the ", text::RoleName(last.role)));
    }
    last.content += shortened.front().content;
    shortened.erase(shortened.begin());
  }
  TDOCK_ASSIGN_OR_RETURN(Next next, RenderChat(std::move(shortened)));
  prompt_ = std::move(next.ids);
  rendered_ = std::move(next.rendered);
  conversation_.insert(conversation_.end(), next.said.begin(), next.said.end());
  return absl::OkStatus();
}

void Transcript::AddReply(const engine::Completion& completion, const text::Turn& message) {
  response_.insert(response_.end(), completion.tokens.begin(), completion.tokens.end());
  mask_.resize(response_.size(), 1);
  log_probs_.insert(log_probs_.end(), completion.log_probs.begin(), completion.log_probs.end());
  conversation_.push_back(message);
  reply_has_end_ = completion.finish_reason == engine::FinishReason::kEndToken;
  // What the engine sampled can be decoded.
  reply_ = ReplyText(*rules_->tokenizer, completion).value_or("");
  SetTail(completion.tokens);
  turns_.push_back({.by_model = true,
                    .ids = completion.tokens,
                    .log_probs = completion.log_probs,
                    .weights = completion.weights,
                    .text = reply_});
}

void Transcript::SetTail(std::span<const int32_t> ids) {
  size_t begin = ids.size();
  while (begin > 0 && !rules_->tokenizer->IsSpecial(ids[begin - 1])) --begin;
  tail_ids_.assign(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end());
  tail_ = rules_->tokenizer->Decode(tail_ids_).value_or("");
}

absl::StatusOr<std::vector<text::Turn>> Transcript::Shortened(const std::vector<text::Turn>& said) const {
  if (rules_->max_observation_tokens == std::numeric_limits<int64_t>::max()) return said;
  std::vector<text::Turn> shortened = said;
  int64_t left = rules_->max_observation_tokens;
  for (text::Turn& turn : shortened) {
    TDOCK_ASSIGN_OR_RETURN(
        const text::Encoding encoding,
        rules_->tokenizer->EncodeWithRanges(turn.content, {.spelled = text::SpelledSpecial::kAsText}));
    if (std::ssize(encoding.ids) > left) turn.content = CutContent(turn.content, encoding, left);
    left = std::max<int64_t>(left - std::ssize(encoding.ids), 0);
  }
  return shortened;
}

absl::StatusOr<Transcript::Next> Transcript::Render(const std::vector<text::Turn>& said) const {
  TDOCK_ASSIGN_OR_RETURN(std::vector<text::Turn> shortened, Shortened(said));
  return rules_->format == environment::TurnFormat::kChat ? RenderChat(std::move(shortened))
                                                          : RenderText(std::move(shortened));
}

absl::StatusOr<Transcript::Next> Transcript::RenderText(std::vector<text::Turn> said) const {
  Next next{.text = TextOfTurns(said)};
  if (!next.text.empty()) {
    TDOCK_ASSIGN_OR_RETURN(next.ids, text::EncodeReply(*rules_->tokenizer, tail_, tail_ids_, next.text));
  }
  next.said = std::move(said);
  return next;
}

// Whether a reply, as the template renders it, is what the model said: calls of tools, and text up to white space.
bool Transcript::SaysTheSame(absl::string_view rendered) const {
  const auto own = ReadReply(reply_), as_rendered = ReadReply(rendered);
  if (!own.ok() || !as_rendered.ok()) return WithoutSpace(rendered) == WithoutSpace(reply_);
  const auto json = [](const text::Turn& turn) {
    return turn.fields.empty() ? nlohmann::json() : ReadJson(turn.fields);
  };
  return WithoutSpace(own->content) == WithoutSpace(as_rendered->content) && json(*own) == json(*as_rendered);
}

absl::StatusOr<Transcript::Next> Transcript::RenderChat(std::vector<text::Turn> said) const {
  std::vector<text::Turn> turns = conversation_;
  turns.insert(turns.end(), said.begin(), said.end());
  const text::Tokenizer& tokenizer = *rules_->tokenizer;
  TDOCK_ASSIGN_OR_RETURN(
      text::EncodedConversation encoded,
      text::EncodeConversation(*rules_->chat_template, tokenizer, turns,
                               {.generation_prompt = true, .context = {.tools = rules_->tools, .documents = ""}}));
  Next next{.fork = !turns_.empty(), .text = TextOfTurns(said), .rendered = encoded.text};
  next.said = std::move(said);
  const auto last = static_cast<int32_t>(conversation_.size()) - 1;  // the reply
  size_t begin = encoded.ids.size(), end = 0;                        // its tokens
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    if (encoded.turns[i] != last || encoded.loss_mask[i] == 0) continue;
    begin = std::min(begin, i);
    end = i + 1;
  }
  const bool as_it_was = !turns_.empty() && absl::StartsWith(encoded.text, rendered_) && begin < end &&
                         std::none_of(encoded.rewritten.begin(), encoded.rewritten.end(),
                                      [last](const auto& rewritten) { return rewritten.turn == last; });
  if (as_it_was) {
    size_t said_end = end;  // without what ends the turn
    while (said_end > begin && tokenizer.IsSpecial(encoded.ids[said_end - 1])) --said_end;
    TDOCK_ASSIGN_OR_RETURN(
        const std::string reply,
        tokenizer.Decode(std::span(encoded.ids).subspan(begin, said_end - begin), text::SpecialTokens::kKeep));
    if (SaysTheSame(reply)) {
      next.fork = false;
      encoded.ids.erase(encoded.ids.begin(),
                        encoded.ids.begin() + static_cast<std::ptrdiff_t>(reply_has_end_ ? end : said_end));
    }
  }
  next.ids = std::move(encoded.ids);
  return next;
}

void Transcript::Add(Next next) {
  conversation_.insert(conversation_.end(), next.said.begin(), next.said.end());
  rendered_ = std::move(next.rendered);
  turns_.push_back({.is_fork = next.fork, .ids = next.ids, .text = std::move(next.text)});
  if (next.fork) {
    ++forks_;
    left_behind_ += std::ssize(response_);
    prompt_ = std::move(next.ids);
    response_.clear();
    mask_.clear();
    log_probs_.clear();
    return;
  }
  response_.insert(response_.end(), next.ids.begin(), next.ids.end());
  mask_.resize(response_.size(), 0);
  log_probs_.resize(response_.size(), 0);
}

void Transcript::AddRewards(const environment::Rewards& rewards) {
  const auto reply = std::find_if(turns_.rbegin(), turns_.rend(), [](const auto& turn) { return turn.by_model; });
  environment::AddRewards(rewards, reply == turns_.rend() ? first_rewards_ : reply->rewards);
}

std::vector<int32_t> Transcript::tokens() const {
  std::vector<int32_t> all = prompt_;
  all.insert(all.end(), response_.begin(), response_.end());
  return all;
}

std::string TraceOf(const std::vector<TranscriptTurn>& turns) {
  auto trace = nlohmann::ordered_json::array();
  for (const TranscriptTurn& turn : turns) {
    nlohmann::ordered_json entry = {{"by", turn.by_model  ? "model"
                                           : turn.is_fork ? "template"
                                                          : "environment"},
                                    {"ids", turn.ids},
                                    {"mask", turn.by_model ? 1 : 0},
                                    {"text", turn.text}};
    if (turn.by_model) {
      entry["log_probs"] = turn.log_probs;
      entry["weights"] = nlohmann::ordered_json::array();
      for (const engine::WeightsSpan& span : turn.weights) {
        entry["weights"].push_back({{"version", span.version}, {"tokens", span.tokens}});
      }
      entry["rewards"] = nlohmann::ordered_json::object();
      for (const auto& [name, value] : turn.rewards) entry["rewards"][name] = value;
    }
    trace.push_back(std::move(entry));
  }
  return JsonText(trace);
}

}  // namespace tdock::trainer
