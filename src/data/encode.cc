#include "data/encode.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "data/adapter_fields.h"
#include "text/turn_json.h"

namespace tdock::data {
namespace {

using text::EncodedConversation;
using text::SpelledSpecial;
using text::TrainOn;
using text::Turn;

void Append(std::vector<int32_t>& ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

template <class T>
bool CutTo(std::vector<T>& items, int64_t most) {
  if (static_cast<int64_t>(items.size()) <= most) return false;
  items.resize(static_cast<size_t>(most));
  return true;
}

absl::Status TooManyTokens(size_t tokens, int64_t most, absl::string_view key) {
  return absl::OutOfRangeError(
      absl::StrCat("the prompt has ", tokens, " tokens; at most ", most, " are allowed by ", key));
}

constexpr absl::string_view kLengthKey = "data.max_length";
constexpr absl::string_view kPromptLengthKey = "data.max_prompt_length";

// What the last turn of a role says; empty: there is none.
std::string LastSaid(std::span<const Turn> turns, text::Role role) {
  for (size_t i = turns.size(); i-- > 0;) {
    if (turns[i].role == role) return turns[i].content;
  }
  return "";
}

std::string LastOfPart(const std::optional<Sample::Part>& part, text::Role role) {
  if (!part) return "";
  const auto* const text = std::get_if<std::string>(&*part);
  return text != nullptr ? *text : LastSaid(std::get<std::vector<Turn>>(*part), role);
}

// The turns of a conversation that ask for its last reply.
std::span<const Turn> AskingTurns(std::span<const Turn> turns) {
  while (!turns.empty() && turns.back().role == text::Role::kAssistant) turns = turns.first(turns.size() - 1);
  return turns;
}

// See EncodedSample::messages. `turns`: of the prompt, or a conversation.
std::string MessagesOf(std::span<const Turn> turns) {
  if (turns.empty()) return "";
  auto messages = nlohmann::ordered_json::array();
  for (const Turn& turn : turns) messages.push_back(text::JsonOfTurn(turn));
  return JsonText(messages);
}

// All turns of a record for supervised training; none where it has texts, or lacks something.
std::vector<Turn> DialogueOf(const Sample& sample) {
  if (!sample.conversation.empty() || !sample.prompt || !sample.chosen) return sample.conversation;
  const auto* const prompt = std::get_if<std::vector<Turn>>(&*sample.prompt);
  if (prompt == nullptr) return {};
  std::vector<Turn> turns = *prompt;
  const auto& answer = std::get<std::vector<Turn>>(*sample.chosen);
  turns.insert(turns.end(), answer.begin(), answer.end());
  return turns;
}

bool CallsTools(const Turn& turn) {
  return turn.role == text::Role::kAssistant &&
         ReadOrderedJson(turn.fields.empty() ? "{}" : turn.fields).contains("tool_calls");
}

// How many tokens come before the first one that is counted; all where none is.
size_t BeforeCounted(const std::vector<uint8_t>& loss_mask) {
  const auto first = std::find_if(loss_mask.begin(), loss_mask.end(), [](uint8_t counted) { return counted != 0; });
  return static_cast<size_t>(first - loss_mask.begin());
}

}  // namespace

bool NeedsTemplate(const Adapter& adapter, Phase phase) {
  if (phase == Phase::kUnsupervised) return false;
  if (adapter.style == Adapter::Style::kChat) return true;
  const absl::StatusOr<std::vector<std::string>> columns = ColumnsOf(adapter, phase);
  return columns.ok() && std::find(columns->begin(), columns->end(), adapter.conversation) != columns->end();
}

absl::StatusOr<std::vector<int32_t>> TokensBeforeText(const text::Tokenizer& tokenizer) {
  TDOCK_ASSIGN_OR_RETURN(std::vector<int32_t> before, tokenizer.Encode("", {.add_special_tokens = true}));
  if (before.empty() || before[0] != tokenizer.bos_id()) before.clear();
  CutTo(before, 1);
  return before;
}

absl::StatusOr<SampleEncoder> SampleEncoder::Create(const Adapter& adapter, Phase phase,
                                                    const text::Tokenizer& tokenizer,
                                                    std::optional<text::ChatTemplate> chat_template,
                                                    const EncodingRules& rules) {
  TDOCK_RETURN_IF_ERROR(ColumnsOf(adapter, phase).status());
  if (NeedsTemplate(adapter, phase) && !chat_template) {
    return absl::InvalidArgumentError(absl::StrCat("the data set \"", EscapeForMessage(adapter.name),
                                                   "\" holds turns of conversations, which need a template; set "
                                                   "data.template, or data.style to text where it holds texts"));
  }
  if (!tokenizer.eos_id()) return absl::InvalidArgumentError("the tokenizer has no end-of-text token");
  if (rules.max_seq_len < 1 || rules.max_prompt_len < 1) {
    return absl::InvalidArgumentError("the longest sequence and the longest prompt must have at least one token");
  }
  SampleEncoder made(tokenizer);
  made.adapter_ = adapter;
  made.phase_ = phase;
  made.chat_template_ = chat_template;
  made.rules_ = rules;
  // Named templates render each reply as it was generated.
  const bool may_rewrite = phase == Phase::kSft && chat_template && !chat_template->is_named();
  if (rules.train_on == TrainOn::kEachReply && !may_rewrite) made.rules_.train_on = TrainOn::kReplies;
  // Of what is put around an empty text, only what begins one.
  TDOCK_ASSIGN_OR_RETURN(made.before_text_, TokensBeforeText(tokenizer));
  return made;
}

absl::StatusOr<OrSkip<EncodedSample>> SampleEncoder::Encode(const Sample& sample, int64_t part) const {
  switch (phase_) {
    case Phase::kSft:
      return EncodeSft(sample, part);
    case Phase::kReward:
      return EncodePair(sample);
    case Phase::kPrompt:
      return EncodePrompt(sample);
    case Phase::kUnsupervised:
      return EncodeText(sample);
  }
  return absl::InternalError("an unknown phase");
}

// The tokens of a prompt are the same in every phase: they are encoded by themselves.
absl::StatusOr<std::vector<int32_t>> SampleEncoder::PromptIds(const Sample& sample) const {
  std::span<const Turn> turns = AskingTurns(sample.conversation);
  if (sample.prompt) {
    if (const auto* text = std::get_if<std::string>(&*sample.prompt)) {
      std::vector<int32_t> ids = before_text_;
      TDOCK_ASSIGN_OR_RETURN(const std::vector<int32_t> own,
                             tokenizer_->Encode(*text, {.spelled = SpelledSpecial::kAsText}));
      Append(ids, own);
      return ids;
    }
    turns = std::get<std::vector<Turn>>(*sample.prompt);
  }
  TDOCK_ASSIGN_OR_RETURN(
      EncodedConversation encoded,
      EncodeConversation(*chat_template_, *tokenizer_, turns, {.generation_prompt = true, .context = sample.context}));
  return std::move(encoded.ids);
}

// A prompt with an answer, and the token that ends it.
absl::StatusOr<EncodedConversation> SampleEncoder::Joined(const Sample::Part& prompt, const Sample::Part& answer,
                                                          const text::Context& context) const {
  if (const auto* turns = std::get_if<std::vector<Turn>>(&prompt)) {
    std::vector<Turn> all = *turns;
    const auto& answers = std::get<std::vector<Turn>>(answer);
    all.insert(all.end(), answers.begin(), answers.end());
    return EncodeConversation(*chat_template_, *tokenizer_, all, {.train_on = rules_.train_on, .context = context});
  }
  EncodedConversation joined;
  TDOCK_ASSIGN_OR_RETURN(joined.ids, PromptIds({.prompt = prompt}));
  joined.loss_mask.assign(joined.ids.size(), rules_.train_on == TrainOn::kEverything ? 1 : 0);
  joined.before_last_reply = joined.ids.size();
  TDOCK_ASSIGN_OR_RETURN(
      const std::vector<int32_t> own,
      text::EncodeReply(*tokenizer_, std::get<std::string>(prompt), std::span(joined.ids).subspan(before_text_.size()),
                        std::get<std::string>(answer)));
  Append(joined.ids, own);
  joined.ids.push_back(*tokenizer_->eos_id());
  joined.loss_mask.resize(joined.ids.size(), 1);
  return joined;
}

void SampleEncoder::AddTexts(const Sample& sample, EncodedSample& encoded, std::span<const Turn> part) const {
  const std::span<const Turn> turns = part.empty() ? sample.conversation : part;
  encoded.prompt_text =
      turns.empty() ? LastOfPart(sample.prompt, text::Role::kUser) : LastSaid(turns, text::Role::kUser);
  if (part.empty()) encoded.truth = sample.truth;  // which is about the last reply
  if (phase_ == Phase::kSft && encoded.truth.empty()) {
    encoded.truth =
        turns.empty() ? LastOfPart(sample.chosen, text::Role::kAssistant) : LastSaid(turns, text::Role::kAssistant);
  }
  encoded.source = sample.source.empty() ? adapter_.name : sample.source;
  encoded.kept = sample.kept;
  if (!rules_.keep_messages) return;
  const auto* const prompt = sample.prompt ? std::get_if<std::vector<Turn>>(&*sample.prompt) : nullptr;
  encoded.messages =
      MessagesOf(prompt != nullptr && part.empty() ? std::span<const Turn>(*prompt) : AskingTurns(turns));
}

absl::Status SampleEncoder::CheckCalls(const std::vector<Turn>& turns, const std::vector<int32_t>& uncounted) const {
  if (rules_.allow_untrained_calls) return absl::OkStatus();
  for (const int32_t turn : uncounted) {
    if (!CallsTools(turns[static_cast<size_t>(turn)])) continue;
    const bool each = rules_.train_on == TrainOn::kEachReply;
    return absl::InvalidArgumentError(absl::StrCat(
        "turn ", turn + 1, " of the conversation calls a tool, and the loss counts nothing of it, because ",
        chat_template_->title(), " does not mark it as a reply",
        each ? "; set" : ", or renders it otherwise once more turns follow; set data.train_on to each_reply, or",
        " data.allow_untrained_calls to true to use such conversations as they are"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SampleEncoder::Part> SampleEncoder::EncodePart(const std::vector<Turn>& turns,
                                                              const text::Context& context, int64_t part) const {
  const text::EncodeTurns options{.train_on = rules_.train_on, .context = context};
  Part made{.encoded = {}, .turns = turns.size()};
  if (part == 0) {
    TDOCK_ASSIGN_OR_RETURN(made.encoded, EncodeConversation(*chat_template_, *tokenizer_, turns, options));
    if (!makes_parts()) TDOCK_RETURN_IF_ERROR(CheckCalls(turns, made.encoded.uncounted));
    if (!makes_parts() || made.encoded.uncounted.empty()) return made;
  }
  TDOCK_ASSIGN_OR_RETURN(const text::TrainedParts all, PartsToTrain(*chat_template_, *tokenizer_, turns, options));
  TDOCK_RETURN_IF_ERROR(CheckCalls(turns, all.untrained));
  const auto index = static_cast<size_t>(part);
  // The whole one is first, or counts nothing and no part does.
  if (part == 0 && (all.parts.empty() || all.parts[0].turns == turns.size())) return made;
  if (index >= all.parts.size()) return absl::InternalError("a record has fewer samples than were counted");
  made.turns = all.parts[index].turns;
  text::EncodeTurns of_part = options;
  of_part.counted = all.parts[index].counted;
  TDOCK_ASSIGN_OR_RETURN(made.encoded,
                         EncodeConversation(*chat_template_, *tokenizer_, std::span(turns).first(made.turns), of_part));
  return made;
}

int64_t SampleEncoder::Parts(const Sample& sample) const {
  if (!makes_parts()) return 1;
  const std::vector<Turn> turns = DialogueOf(sample);
  const auto is_reply = [](const Turn& turn) { return turn.role == text::Role::kAssistant; };
  if (std::count_if(turns.begin(), turns.end(), is_reply) < 2) return 1;
  const auto all = PartsToTrain(*chat_template_, *tokenizer_, turns, {.context = sample.context});
  // A bad record makes one sample, which is its error.
  if (!all.ok() || !CheckCalls(turns, all->untrained).ok()) return 1;
  return std::max<int64_t>(static_cast<int64_t>(all->parts.size()), 1);
}

absl::StatusOr<OrSkip<EncodedSample>> SampleEncoder::EncodeSft(const Sample& sample, int64_t part) const {
  EncodedConversation whole;
  std::vector<Turn> turns;  // of a part that is not the whole record
  if (sample.text) {
    whole.ids = before_text_;
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int32_t> own,
                           tokenizer_->Encode(*sample.text, {.spelled = SpelledSpecial::kAsText}));
    Append(whole.ids, own);
    whole.ids.push_back(*tokenizer_->eos_id());
    whole.loss_mask.assign(whole.ids.size(), own.empty() ? 0 : 1);
  } else if (std::vector<Turn> all = DialogueOf(sample); !all.empty()) {
    TDOCK_ASSIGN_OR_RETURN(Part encoded, EncodePart(all, sample.context, part));
    whole = std::move(encoded.encoded);
    if (encoded.turns < all.size()) {
      all.resize(encoded.turns);
      turns = std::move(all);
    }
  } else {
    if (!sample.prompt || !sample.chosen) return Skip::kIncomplete;
    TDOCK_ASSIGN_OR_RETURN(whole, Joined(*sample.prompt, *sample.chosen, sample.context));
  }
  const size_t uncounted = BeforeCounted(whole.loss_mask);
  if (uncounted == whole.loss_mask.size()) return Skip::kUncounted;
  // Where nothing is left to learn.
  if (static_cast<int64_t>(uncounted) >= rules_.max_seq_len) {
    if (rules_.overlong_prompts == OverlongPrompts::kError) {
      return TooManyTokens(uncounted, rules_.max_seq_len - 1, kLengthKey);
    }
    return Skip::kOverlong;
  }
  EncodedSample encoded{.ids = std::move(whole.ids), .loss_mask = std::move(whole.loss_mask), .label = sample.label};
  encoded.is_part = part > 0;
  encoded.rewritten = std::any_of(whole.rewritten.begin(), whole.rewritten.end(), [&](const auto& reply) {
    return !makes_parts() || reply.how == EncodedConversation::Rewritten::How::kPrompt;
  });
  encoded.truncated = CutTo(encoded.ids, rules_.max_seq_len);
  CutTo(encoded.loss_mask, rules_.max_seq_len);
  // Where the last reply was cut off, it is not known what would ask for it.
  if (whole.before_last_reply < encoded.ids.size()) {
    encoded.prompt_tokens = static_cast<int64_t>(whole.before_last_reply);
  }
  AddTexts(sample, encoded, turns);
  return encoded;
}

absl::StatusOr<OrSkip<EncodedSample>> SampleEncoder::EncodePair(const Sample& sample) const {
  if (!sample.prompt || !sample.chosen || !sample.rejected) return Skip::kIncomplete;
  TDOCK_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, PromptIds(sample));
  if (static_cast<int64_t>(prompt.size()) >= rules_.max_seq_len) {
    if (rules_.overlong_prompts == OverlongPrompts::kError) {
      return TooManyTokens(prompt.size(), rules_.max_seq_len - 1, kLengthKey);
    }
    return Skip::kOverlong;
  }
  TDOCK_ASSIGN_OR_RETURN(EncodedConversation chosen, Joined(*sample.prompt, *sample.chosen, sample.context));
  TDOCK_ASSIGN_OR_RETURN(EncodedConversation rejected, Joined(*sample.prompt, *sample.rejected, sample.context));
  EncodedSample encoded{.ids = std::move(chosen.ids),
                        .loss_mask = std::move(chosen.loss_mask),
                        .rejected = std::move(rejected.ids),
                        .rejected_mask = std::move(rejected.loss_mask),
                        .label = sample.label};
  encoded.rewritten = !chosen.rewritten.empty() || !rejected.rewritten.empty();
  encoded.truncated = CutTo(encoded.ids, rules_.max_seq_len);
  CutTo(encoded.loss_mask, rules_.max_seq_len);
  encoded.truncated |= CutTo(encoded.rejected, rules_.max_seq_len);
  CutTo(encoded.rejected_mask, rules_.max_seq_len);
  if (encoded.ids == encoded.rejected) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the chosen and the rejected answer are the same",
        encoded.truncated ? absl::StrCat(" once they are cut to ", rules_.max_seq_len, " tokens (", kLengthKey, ")")
                          : "",
        ": a pair that prefers nothing"));
  }
  for (const std::vector<uint8_t>* mask : {&encoded.loss_mask, &encoded.rejected_mask}) {
    if (std::find(mask->begin(), mask->end(), 1) == mask->end()) return Skip::kUncounted;
  }
  AddTexts(sample, encoded);
  return encoded;
}

absl::StatusOr<OrSkip<EncodedSample>> SampleEncoder::EncodePrompt(const Sample& sample) const {
  if (!sample.prompt && sample.conversation.empty()) return Skip::kIncomplete;
  EncodedSample encoded{.label = sample.label};
  TDOCK_ASSIGN_OR_RETURN(encoded.ids, PromptIds(sample));
  if (encoded.ids.empty()) return Skip::kEmpty;
  encoded.prompt_tokens = static_cast<int64_t>(encoded.ids.size());
  AddTexts(sample, encoded);
  if (static_cast<int64_t>(encoded.ids.size()) <= rules_.max_prompt_len) return encoded;
  switch (rules_.overlong_prompts) {
    case OverlongPrompts::kDrop:
      return Skip::kOverlong;
    case OverlongPrompts::kError:
      return TooManyTokens(encoded.ids.size(), rules_.max_prompt_len, kPromptLengthKey);
    case OverlongPrompts::kTruncateLeft:
      encoded.ids.erase(encoded.ids.begin(), encoded.ids.end() - rules_.max_prompt_len);
      encoded.prompt_tokens = rules_.max_prompt_len;
      encoded.truncated = true;
      return encoded;
  }
  return absl::InternalError("an unknown rule for overlong prompts");
}

absl::StatusOr<OrSkip<EncodedSample>> SampleEncoder::EncodeText(const Sample& sample) const {
  if (!sample.text) return Skip::kIncomplete;
  EncodedSample encoded{.label = sample.label};
  TDOCK_ASSIGN_OR_RETURN(encoded.ids, tokenizer_->Encode(*sample.text, {.spelled = SpelledSpecial::kAsText}));
  return encoded;
}

std::string SampleEncoder::Description() const {
  std::string description = absl::StrCat(
      "phase ", PhaseName(phase_), " style ", static_cast<int>(adapter_.style), " seq ", rules_.max_seq_len, " prompt ",
      rules_.max_prompt_len, " overlong ", static_cast<int>(rules_.overlong_prompts), " train ",
      static_cast<int>(rules_.train_on), " template ", chat_template_ ? chat_template_->Description() : "");
  const auto add = [&](const std::string& text) { absl::StrAppend(&description, " ", text.size(), ":", text); };
  add(adapter_.name);
  for (const AdapterField& field : kAdapterFields) {
    // Runs that were saved without such columns go on.
    const bool is_new = field.column == &Adapter::tools || field.column == &Adapter::documents;
    if (!is_new || !(adapter_.*field.column).empty()) add(adapter_.*field.column);
  }
  add(adapter_.truth_after);
  for (const std::string& column : adapter_.keep) add(column);
  if (rules_.keep_messages) add("messages");
  if (rules_.allow_untrained_calls) add("untrained calls");
  return description;
}

}  // namespace tdock::data
